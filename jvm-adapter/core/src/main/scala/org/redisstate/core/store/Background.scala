package org.redisstate.core.store

import java.util.concurrent.{ExecutorService, Executors, Future, ThreadFactory}
import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

/** Daemon threads of one executor process, shared by all stores. */
private[store] object Background {
  private val log = LoggerFactory.getLogger(getClass)

  /** Read-ahead and compaction: nothing waits for it, a failure only costs speed. */
  private val helpers = pool("redis-state-background", 2)

  /** Staging of large write sets: commit waits for it. */
  private val stagers = pool("redis-state-stage", 1)

  def helping(what: => String)(work: => Unit): Unit = {
    helpers.submit(new Runnable {
      override def run(): Unit =
        try work
        catch {
          case e: Exception =>
            log.warn(s"$what failed; the next user of the data does it itself", e)
        }
    })
    ()
  }

  def staging(work: => Unit): Future[_] = stagers.submit(new Runnable {
    override def run(): Unit = work
  })

  private def pool(name: String, threads: Int): ExecutorService = {
    val count = new AtomicLong
    Executors.newFixedThreadPool(
      threads,
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
