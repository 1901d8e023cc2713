package org.redisstate.core.store

import java.util.concurrent.atomic.AtomicLong

/** Running totals of one partition; the Spark edge turns differences into metrics of a batch. */
final class StoreCounters {
  val rowsWritten: AtomicLong = new AtomicLong
  val rowsRemoved: AtomicLong = new AtomicLong
  val openMs: AtomicLong = new AtomicLong
  val loadMs: AtomicLong = new AtomicLong
  val commitMs: AtomicLong = new AtomicLong
  val maintenanceMs: AtomicLong = new AtomicLong
  val cacheHits: AtomicLong = new AtomicLong
  val cacheMisses: AtomicLong = new AtomicLong
  val bucketsLoaded: AtomicLong = new AtomicLong

  /** Of `bucketsLoaded`, those that had been here before and did not find room to stay. */
  val bucketsReloaded: AtomicLong = new AtomicLong
  val snapshots: AtomicLong = new AtomicLong
}

private[store] object StoreCounters {

  /** Adds the milliseconds of a piece of work to a total. */
  def timed[A](total: AtomicLong)(body: => A): A = {
    val from = System.nanoTime()
    try body
    finally {
      total.addAndGet((System.nanoTime() - from) / 1000000L)
      ()
    }
  }
}
