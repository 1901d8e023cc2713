package org.redisstate.core.store.resources

import java.util.concurrent.{FutureTask, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

/** Daemon threads that read files ahead of tasks; one set for an executor process. */
object FileReads {
  private val ParallelDefault = 64
  private val IdleS = 10L
  private val count = new AtomicLong
  @volatile private var most = ParallelDefault

  private val threads = {
    val pool = new ThreadPoolExecutor(
      ParallelDefault,
      ParallelDefault,
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

  /** Most ranges that are read at once. */
  private[store] def parallel: Int = most

  /** Sets the most ranges that are read at once; reads that have begun continue. */
  def resize(parallel: Int): Unit = synchronized {
    if (parallel > most) threads.setMaximumPoolSize(parallel)
    threads.setCorePoolSize(parallel)
    threads.setMaximumPoolSize(parallel)
    most = parallel
  }

  private[store] def submit(read: FutureTask[_]): Unit = threads.execute(read)

  /** Cancels a read that has not begun. */
  private[store] def cancel(read: FutureTask[_]): Unit = {
    read.cancel(false)
    threads.remove(read)
    ()
  }
}
