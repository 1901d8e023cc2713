package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.streaming.state._

/** Spark 4.1 makes a store that reads into one that writes, with fewer arguments than later ones. */
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
