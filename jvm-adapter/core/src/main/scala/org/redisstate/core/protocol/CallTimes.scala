package org.redisstate.core.protocol

import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.{AtomicLong, AtomicLongArray}

/** Times of the calls to the server for one partition. Thread-safe. */
final class CallTimes {
  import CallTimes._

  /** Time of all calls, including tries and pauses. */
  val ns: AtomicLong = new AtomicLong

  /** Number of calls that also waited for replicas or for the disk, and their time. */
  val durable: AtomicLong = new AtomicLong
  val durableNs: AtomicLong = new AtomicLong

  /** Numbers of calls that opened a version, by their time: class n is shorter than 125 µs · 2^n. */
  private val opens = new AtomicLongArray(Classes)

  def openClasses: Seq[Long] = (0 until Classes).map(opens.get)

  private[protocol] def timed[A](call: => A, waits: Boolean = false): A = {
    val from = System.nanoTime()
    try call
    finally {
      val took = System.nanoTime() - from
      ns.addAndGet(took)
      if (waits) {
        durable.incrementAndGet()
        durableNs.addAndGet(took)
      }
    }
  }

  private[protocol] def opening[A](call: => A): A = {
    val from = System.nanoTime()
    try call
    finally {
      opens.incrementAndGet(classOf(System.nanoTime() - from))
      ()
    }
  }
}

object CallTimes {

  /** Number of classes; the last one has no upper bound. */
  val Classes: Int = 16
  private val ShortestNs = TimeUnit.MICROSECONDS.toNanos(125)

  private[protocol] def classOf(ns: Long): Int =
    math.min(
      Classes - 1,
      java.lang.Long.SIZE - java.lang.Long.numberOfLeadingZeros(ns / ShortestNs))
}
