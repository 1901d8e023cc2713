package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state._

/**
 * Spark 4.1 turns a store for reading into one for writing, with fewer arguments than later
 * versions.
 */
private[redisstate] trait ProviderShim extends OpensSince42 {
  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(
      readStore,
      version,
      stateStoreCkptId,
      forceSnapshotOnCommit = false)
}
