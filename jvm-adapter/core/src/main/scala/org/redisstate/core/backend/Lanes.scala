package org.redisstate.core.backend

import java.util.concurrent.{
  RejectedExecutionException,
  SynchronousQueue,
  ThreadPoolExecutor,
  TimeUnit
}

import scala.annotation.tailrec
import scala.collection.mutable

import org.redisstate.core.concurrent.GuardedBy

/**
 * Background work for one server, in lanes: that of a lane is done in its order, on one daemon
 * thread, and waits for no other lane. Thread-safe.
 *
 * @param newThread makes a thread for a lane
 */
private[backend] final class Lanes(newThread: Runnable => Thread = Lanes.daemon) {
  import Lanes._

  /** Work by lane; a lane without work has no queue. */
  @GuardedBy("this") private val queues = mutable.HashMap.empty[String, mutable.Queue[Runnable]]
  @GuardedBy("this") private var isClosed = false

  private val threads = new ThreadPoolExecutor(
    0,
    ThreadsMax,
    IdleS,
    TimeUnit.SECONDS,
    new SynchronousQueue[Runnable],
    (work: Runnable) => newThread(work)
  )

  /**
   * Adds work to a lane.
   *
   * @return false if no thread is free or can be made, or after `close`: the caller does it
   */
  def add(lane: String, work: Runnable): Boolean = synchronized {
    queues.get(lane) match {
      case Some(queue) =>
        queue += work
        true
      case None if isClosed || queues.size >= ThreadsMax => false
      case None => begin(lane, work)
    }
  }

  @GuardedBy("this") private def begin(lane: String, work: Runnable): Boolean = {
    queues(lane) = mutable.Queue(work)
    try {
      threads.execute(() => run(lane))
      true
    } catch {
      // The thread of a lane that has just ended is not idle yet, or the system has no thread left.
      case _: RejectedExecutionException | _: OutOfMemoryError =>
        queues -= lane
        false
    }
  }

  /** Ends the threads after the work that was added. */
  def close(): Unit = synchronized {
    isClosed = true
    threads.shutdown()
  }

  @tailrec private def run(lane: String): Unit = next(lane) match {
    case Some(work) =>
      work.run()
      run(lane)
    case None => ()
  }

  private def next(lane: String): Option[Runnable] = synchronized {
    val queue = queues(lane)
    if (queue.isEmpty) queues -= lane
    queue.removeHeadOption()
  }
}

private object Lanes {

  /** Lanes that have work at one time. */
  private val ThreadsMax = 8
  private val IdleS = 10L

  private def daemon(work: Runnable): Thread = {
    val thread = new Thread(work, "redis-state-stage")
    thread.setDaemon(true)
    thread
  }
}
