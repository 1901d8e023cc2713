package org.apache.spark.sql.redisstate.system

import java.util.concurrent._
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

/**
 * What `java.util.concurrent.Executors` is to the classes of a [[ProcessLoader]]: pools that say
 * when nothing is under way, and a heart that beats only when it is told to.
 */
object Pools {
  private val made = new ConcurrentLinkedQueue[Counted]

  def newFixedThreadPool(threads: Int, factory: ThreadFactory): ExecutorService =
    kept(new Counted(threads, factory))

  def newSingleThreadExecutor(factory: ThreadFactory): ExecutorService =
    kept(new Counted(1, factory))

  /** Returns an executor that runs immediate work and cancels scheduled work. */
  def newSingleThreadScheduledExecutor(factory: ThreadFactory): ScheduledExecutorService = {
    val atOnce = new Counted(1, factory)
    made.add(atOnce)
    new ScheduledThreadPoolExecutor(1, factory) {
      override def execute(work: Runnable): Unit = atOnce.execute(work)
      override def shutdown(): Unit = {
        atOnce.shutdown()
        made.remove(atOnce)
        super.shutdown()
      }
      override protected def decorateTask[V](
          work: Runnable,
          task: RunnableScheduledFuture[V]): RunnableScheduledFuture[V] = {
        task.cancel(false)
        task
      }
    }
  }

  /** The pools of a process. */
  def of(loader: ClassLoader): Seq[Counted] = made.asScala.filter(_.loader eq loader).toSeq

  def end(loader: ClassLoader): Unit = {
    of(loader).foreach(_.shutdownNow())
    made.removeIf(_.loader eq loader)
    ()
  }

  private def kept(pool: Counted): ExecutorService = {
    made.add(pool)
    pool
  }

  /** A pool that knows how many of its tasks have not ended. */
  final class Counted(threads: Int, factory: ThreadFactory)
      extends ThreadPoolExecutor(
        threads,
        threads,
        0L,
        TimeUnit.MILLISECONDS,
        new LinkedBlockingQueue[Runnable],
        factory) {
    val loader: ClassLoader = factory.getClass.getClassLoader
    private val pending = new AtomicInteger

    override def execute(work: Runnable): Unit = {
      pending.incrementAndGet()
      try super.execute(work)
      catch {
        case e: RejectedExecutionException =>
          pending.decrementAndGet()
          throw e
      }
    }

    override protected def afterExecute(work: Runnable, failure: Throwable): Unit = {
      super.afterExecute(work, failure)
      pending.synchronized {
        pending.decrementAndGet()
        pending.notifyAll()
      }
    }

    /** Waits for all submitted work to end; true if it ended within the time. */
    def rests(withinMs: Long): Boolean = {
      val end = System.nanoTime() + withinMs * 1000000L
      pending.synchronized {
        var left = withinMs
        while (pending.get > 0 && left > 0) {
          pending.wait(left)
          left = (end - System.nanoTime()) / 1000000L
        }
        pending.get == 0
      }
    }
  }
}
