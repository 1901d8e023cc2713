package org.apache.spark.sql.redisstate.system

import java.util.concurrent.{LinkedBlockingQueue, Semaphore, TimeUnit}

/**
 * A thread of a process that is played: does one command at a time, and can be held in the middle
 * of it.
 */
final class Worker(name: String, body: Array[String] => String) extends Thread(name) {
  import Worker._

  private val asked = new LinkedBlockingQueue[Array[String]]
  private val said = new LinkedBlockingQueue[String]
  private val goOn = new Semaphore(0)
  @volatile private var stopAt = ""
  @volatile private var dead = false
  @volatile var isPaused = false
  setDaemon(true)

  override def run(): Unit =
    try {
      while (!dead) {
        val words = asked.take()
        said.put(body(words))
      }
    } catch { case _: InterruptedException | _: Killed => () }

  /** @param pauseAt a point of [[Files]] at which it stays until `proceed`; empty means none */
  def tell(words: Array[String], pauseAt: String): String = {
    stopAt = pauseAt
    asked.put(words)
    answer()
  }

  def proceed(): String = {
    goOn.release()
    answer()
  }

  /** Whatever it is amid, nothing more of it happens. */
  def kill(): Unit = {
    dead = true
    interrupt()
  }

  private def answer(): String = {
    val text = said.poll(HangS, TimeUnit.SECONDS)
    stopAt = if (text == Paused) stopAt else ""
    if (text == null)
      s"error HANG $getName:${getStackTrace.take(12).mkString(" at ").replace('\n', ' ')}"
    else text
  }

  private def pass(point: String): Unit = {
    if (dead) throw new Killed
    if (stopAt.nonEmpty && point.startsWith(stopAt)) {
      stopAt = ""
      isPaused = true
      said.put(Paused)
      try goOn.acquire()
      finally isPaused = false
      if (dead) throw new Killed
    }
  }
}

object Worker {
  private val HangS = 60L
  private val Paused = "paused"

  /** The process of this thread was killed. */
  final class Killed extends Error("killed")

  /** The thread has come to a point at which it may be held. */
  def at(point: String): Unit = Thread.currentThread match {
    case worker: Worker => worker.pass(point)
    case _ => ()
  }
}
