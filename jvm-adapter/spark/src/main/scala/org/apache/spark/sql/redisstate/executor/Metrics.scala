package org.apache.spark.sql.redisstate.executor

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.sql.execution.streaming.state._

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.store.PartitionVersions

/**
 * Custom metrics of a store: changes since the last call, so that Spark's sums are sums over a
 * batch.
 */
private[redisstate] final class Metrics(store: PartitionVersions) {
  import Metrics._
  @GuardedBy("this") private var last = Map.empty[StateStoreCustomMetric, Long]

  /** Returns the changes of one committed batch. */
  def sinceLast(): Map[StateStoreCustomMetric, Long] = synchronized {
    val now = totals()
    val change = now.map { case (metric, value) => metric -> (value - last.getOrElse(metric, 0L)) }
    last = now
    change
  }

  private def totals(): Map[StateStoreCustomMetric, Long] = {
    val c = store.counters
    Map(
      rowsWritten -> c.rowsWritten.get,
      rowsRemoved -> c.rowsRemoved.get,
      bytesSent -> store.client.bytesSent.get,
      bytesRead -> store.client.bytesRead.get,
      roundTrips -> store.client.roundTrips.get,
      openMs -> ms(c.openNs),
      loadMs -> ms(c.loadNs),
      commitMs -> ms(c.commitNs),
      maintenanceMs -> ms(c.maintenanceNs),
      cacheHits -> c.cacheHits.get,
      cacheMisses -> c.cacheMisses.get,
      bucketsLoaded -> c.bucketsLoaded.get,
      bucketsReloaded -> c.bucketsReloaded.get,
      bucketsPrefetched -> c.prefetched.get,
      bucketsLate -> c.prefetchedLate.get,
      filterSkips -> c.filterSkips.get,
      snapshots -> c.snapshots.get,
      diskHits -> store.client.filed.diskHits.get,
      fileReads -> store.client.filed.reads.get,
      fileReadMs -> ms(store.client.filed.readNs),
      fileBytes -> store.client.filed.readBytes.get,
      movedBytes -> store.client.filed.movedBytes.get,
      roomWaits -> store.client.filed.roomWaits.get,
      roomWaitMs -> ms(store.client.filed.roomWaitNs)
    )
  }
}

private[redisstate] object Metrics {
  def ms(nanos: AtomicLong): Long = nanos.get / 1000000L

  private val defined = Seq.newBuilder[StateStoreCustomMetric]

  private def define(metric: StateStoreCustomMetric): StateStoreCustomMetric = {
    defined += metric
    metric
  }

  private def sum(name: String, what: String) =
    define(StateStoreCustomSumMetric(s"redisState$name", s"Redis state: $what"))
  private def size(name: String, what: String) =
    define(StateStoreCustomSizeMetric(s"redisState$name", s"Redis state: $what"))
  private def timing(name: String, what: String) =
    define(StateStoreCustomTimingMetric(s"redisState$name", s"Redis state: $what"))

  val rowsWritten: StateStoreCustomMetric = sum("RowsWritten", "rows put")
  val rowsRemoved: StateStoreCustomMetric = sum("RowsRemoved", "rows removed")
  val bytesSent: StateStoreCustomMetric = size("BytesSent", "bytes sent")
  val bytesRead: StateStoreCustomMetric = size("BytesRead", "bytes of blocks read")
  val roundTrips: StateStoreCustomMetric = sum("RoundTrips", "round trips")
  val openMs: StateStoreCustomMetric = timing("OpenMs", "time to open versions, loading included")
  val loadMs: StateStoreCustomMetric = timing("LoadMs", "time to load versions")
  val commitMs: StateStoreCustomMetric = timing("CommitMs", "time to commit")
  val maintenanceMs: StateStoreCustomMetric = timing("MaintenanceMs", "time of maintenance")
  val cacheHits: StateStoreCustomMetric = sum("CacheHits", "versions found in local memory")
  val cacheMisses: StateStoreCustomMetric = sum("CacheMisses", "versions loaded from Redis")
  val bucketsLoaded: StateStoreCustomMetric = sum("BucketsLoaded", "buckets read from Redis")
  val bucketsReloaded: StateStoreCustomMetric =
    sum("BucketsReloaded", "buckets read again, for which local memory had no room")
  val bucketsPrefetched: StateStoreCustomMetric =
    sum("BucketsPrefetched", "buckets read from files ahead of their use")
  val bucketsLate: StateStoreCustomMetric =
    sum("BucketsLate", "buckets read ahead of their use, and still waited for")
  val filterSkips: StateStoreCustomMetric =
    sum("FilterSkips", "look-ups for which a filter saved a read of a file")
  val snapshots: StateStoreCustomMetric = sum("Snapshots", "snapshots written")
  val diskHits: StateStoreCustomMetric = sum("DiskHits", "reads from the local disk")
  val fileReads: StateStoreCustomMetric = sum("FileReads", "reads from files")
  val fileReadMs: StateStoreCustomMetric = timing("FileReadMs", "time to read from files")
  val fileBytes: StateStoreCustomMetric = size("FileBytes", "bytes read from files")
  val movedBytes: StateStoreCustomMetric = size("MovedBytes", "bytes moved into files")
  val roomWaits: StateStoreCustomMetric =
    sum("RoomWaits", "calls that waited until segments had left Redis")
  val roomWaitMs: StateStoreCustomMetric =
    timing("RoomWaitMs", "time until segments had left Redis")
  val localBytes: StateStoreCustomMetric = size("LocalBytes", "local memory")

  /** Rows of timers and indexes that Spark keeps; they do not count as state rows. */
  val internalKeys: StateStoreCustomMetric = sum("InternalKeys", "rows of internal column families")

  /** Spark's own name for it. */
  val forceSnapshot: StateStoreCustomMetric =
    define(
      StateStoreCustomSumMetric("forceSnapshotCount", "number of stores that had forced snapshot"))

  /** All metrics, in the order of their definitions. */
  val all: Seq[StateStoreCustomMetric] = defined.result()
}
