package org.redisstate.core.store.resources

import java.util.concurrent.atomic.AtomicLong

/** Running totals of one partition; the Spark edge turns differences into metrics of a batch. */
final class StoreCounters {
  val rowsWritten: AtomicLong = new AtomicLong
  val rowsRemoved: AtomicLong = new AtomicLong
  val opens: AtomicLong = new AtomicLong
  val commits: AtomicLong = new AtomicLong
  val openNs: AtomicLong = new AtomicLong
  val loadNs: AtomicLong = new AtomicLong
  val commitNs: AtomicLong = new AtomicLong
  val maintenanceNs: AtomicLong = new AtomicLong
  val cacheHits: AtomicLong = new AtomicLong
  val cacheMisses: AtomicLong = new AtomicLong
  val bucketsLoaded: AtomicLong = new AtomicLong

  /** Part of `bucketsLoaded` that had been here before and did not find room to stay. */
  val bucketsReloaded: AtomicLong = new AtomicLong
  val snapshots: AtomicLong = new AtomicLong
}

private[store] object StoreCounters {

  /** Adds the nanoseconds of a piece of work to a total: pieces are often shorter than a millisecond. */
  def timed[A](total: AtomicLong)(body: => A): A = {
    val from = System.nanoTime()
    try body
    finally {
      total.addAndGet(System.nanoTime() - from)
      ()
    }
  }
}
