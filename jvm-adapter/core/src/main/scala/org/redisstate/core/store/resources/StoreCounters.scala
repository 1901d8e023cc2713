package org.redisstate.core.store.resources

import java.lang.management.ManagementFactory
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

  /** Part of `bucketsLoaded` that was loaded before, and had no room to stay. */
  val bucketsReloaded: AtomicLong = new AtomicLong
  val snapshots: AtomicLong = new AtomicLong

  /** Time from the opening of a version to the commit of the next one, which a task spends. */
  val workNs: AtomicLong = new AtomicLong

  /** Number of look-ups that waited for a bucket from Redis, and their time. */
  val misses: AtomicLong = new AtomicLong
  val missNs: AtomicLong = new AtomicLong

  /** Buckets that were read ahead, and the part of them for which a task still waited. */
  val prefetched: AtomicLong = new AtomicLong
  val prefetchedLate: AtomicLong = new AtomicLong

  /** Number of look-ups for which a filter saved a read. */
  val filterSkips: AtomicLong = new AtomicLong

  /** Time for making room before reads. */
  val roomNs: AtomicLong = new AtomicLong

  /** Parts of commits: encoding blocks, and waiting for those on their way to the server. */
  val encodeNs: AtomicLong = new AtomicLong

  /** Part of `encodeNs` in which the thread had a processor; 0 where the JVM does not tell. */
  val encodeCpuNs: AtomicLong = new AtomicLong
  val stageNs: AtomicLong = new AtomicLong

  /** Time in which layers were folded or merged in the background. */
  val foldNs: AtomicLong = new AtomicLong

  /** Deltas of loaded versions. */
  val deltasLoaded: AtomicLong = new AtomicLong

  /** The version that was opened or committed last. */
  val version: AtomicLong = new AtomicLong
}

private[store] object StoreCounters {
  private val threads = ManagementFactory.getThreadMXBean
  private val knowsCpu = threads.isCurrentThreadCpuTimeSupported

  /** Adds the processor time of a piece of work to a total. */
  def onProcessor[A](total: AtomicLong)(body: => A): A = if (!knowsCpu) body
  else {
    val from = threads.getCurrentThreadCpuTime
    try body
    finally {
      total.addAndGet(threads.getCurrentThreadCpuTime - from)
      ()
    }
  }

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
