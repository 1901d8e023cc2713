package org.apache.spark.sql.redisstate.checkpoint

import java.util.concurrent.Semaphore

import scala.collection.mutable
import scala.util.{Random, Try}

/** Threads of which one runs at a time. Which one goes on at each step is decided by a seed. */
private[redisstate] final class Turns(seed: Long) {
  private val random = new Random(seed)
  private val turn = new Semaphore(0)
  private val current = new ThreadLocal[Actor]
  private val actors = mutable.ArrayBuffer.empty[Actor]

  private final class Actor(work: () => Any) {
    val go = new Semaphore(0)
    @volatile var result: Option[Try[Any]] = None
    val thread = new Thread(() => {
      current.set(this)
      go.acquire()
      result = Some(Try(work()))
      turn.release()
    })
    thread.setDaemon(true)
    thread.start()
  }

  def add(work: => Any): Unit = actors += new Actor(() => work)

  /** Ends the turn and waits for the next; does nothing on a thread that is not an actor. */
  def step(): Unit = Option(current.get).foreach { me =>
    turn.release()
    me.go.acquire()
  }

  /** Runs all actors to the end; returns the result of each, in the order of `add`. */
  def play(): Seq[Try[Any]] = {
    var living = actors.filter(_.result.isEmpty)
    while (living.nonEmpty) {
      living(random.nextInt(living.size)).go.release()
      turn.acquire()
      living = living.filter(_.result.isEmpty)
    }
    actors.map(_.result.get).toSeq
  }
}
