package org.redisstate.core.store.resources

import java.util.concurrent.{FutureTask, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

/** Daemon threads that wait for files ahead of tasks; one executor process has one set of them. */
private[store] object FileReads {

  /** Most ranges that are read at once. */
  val ParallelMax = 64
  private val IdleS = 10L
  private val count = new AtomicLong

  private val threads = {
    val pool = new ThreadPoolExecutor(
      ParallelMax,
      ParallelMax,
      IdleS,
      TimeUnit.SECONDS,
      new LinkedBlockingQueue[Runnable],
      (work: Runnable) => {
        val thread = new Thread(work, s"redis-state-file-read-${count.incrementAndGet()}")
        thread.setDaemon(true)
        thread
      }
    )
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  def submit(read: FutureTask[_]): Unit = threads.execute(read)

  /** Drops a read that has not begun. */
  def cancel(read: FutureTask[_]): Unit = {
    read.cancel(false)
    threads.remove(read)
    ()
  }
}
