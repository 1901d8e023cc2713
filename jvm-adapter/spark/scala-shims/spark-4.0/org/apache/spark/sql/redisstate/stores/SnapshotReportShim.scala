package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state._

/** Spark 4.0 does not ask for the newest snapshot of each store. */
private[redisstate] trait SnapshotReportShim extends StateStoreProvider {
  protected def metricsOf(
      numKeys: Long,
      memoryBytes: Long,
      custom: Map[StateStoreCustomMetric, Long],
      snapshotVersion: Long): StateStoreMetrics =
    StateStoreMetrics(numKeys, memoryBytes, custom)

  protected def reportSnapshot(runId: String, version: Long): Unit = ()
}
