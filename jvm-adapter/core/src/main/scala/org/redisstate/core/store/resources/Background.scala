package org.redisstate.core.store.resources

import java.util.concurrent.{
  ExecutionException,
  FutureTask,
  LinkedBlockingQueue,
  ThreadFactory,
  ThreadPoolExecutor,
  TimeUnit
}
import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

/** Daemon threads of one executor process, shared by all stores. */
private[store] object Background {
  private val log = LoggerFactory.getLogger(getClass)

  private[store] val HelpersMax = 2

  /** Most pieces of work that wait for files. */
  private val FileWorkMax = 256

  /** Number of results that are made ahead of their use. */
  private val AheadMax = 2 * HelpersMax

  /** Threads for read-ahead and compaction, for which nothing waits: a failure only costs speed. */
  private val helpers = pool("redis-state-background", HelpersMax)

  /** Helpers that read files, since a folder that does not answer holds whoever waits for it. */
  private val fileHelpers = pool("redis-state-background-files", HelpersMax)

  /**
   * @param inFiles whether the work reads files; it is left out where too much waits for them
   * @return false if the work was left out
   */
  def helping(what: => String, inFiles: Boolean = false)(work: => Unit): Boolean = {
    val chosen = if (inFiles) fileHelpers else helpers
    val hasPlace = !inFiles || chosen.getQueue.size < FileWorkMax
    if (hasPlace) chosen.submit(new Runnable {
      override def run(): Unit =
        try work
        catch {
          case e: Exception =>
            log.warn(s"$what failed; the next reader of the data repeats it", e)
        }
    })
    hasPlace
  }

  /**
   * Returns the results of `work` for 0 until `count`, in order. The caller works itself; idle
   * helpers work a little ahead of it, so that few results wait to be used.
   *
   * @param inFiles see `helping`
   */
  def sharing[A](what: => String, count: Int, inFiles: Boolean)(work: Int => A): Iterator[A] = {
    val tasks = Vector.tabulate(count)(i => new FutureTask[A](() => work(i)))
    def ahead(i: Int): Unit = if (i < count) helping(what, inFiles)(tasks(i).run())
    (1 to AheadMax).foreach(ahead)
    tasks.indices.iterator.map { i =>
      val task = tasks(i)
      task.run()
      ahead(i + 1 + AheadMax)
      try task.get()
      catch {
        case e: ExecutionException =>
          tasks.foreach(_.cancel(false))
          throw e.getCause
      }
    }
  }

  private def pool(name: String, threads: Int): ThreadPoolExecutor = {
    val count = new AtomicLong
    new ThreadPoolExecutor(
      threads,
      threads,
      0,
      TimeUnit.SECONDS,
      new LinkedBlockingQueue[Runnable],
      new ThreadFactory {
        override def newThread(work: Runnable): Thread = {
          val thread = new Thread(work, s"$name-${count.incrementAndGet()}")
          thread.setDaemon(true)
          thread
        }
      }
    )
  }
}
