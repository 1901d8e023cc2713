package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state._

/**
 * Requests of Spark since 4.2: forced snapshots, and stores that begin empty. Before 4.2 it needs
 * neither.
 */
private[redisstate] trait OpensSince42 extends StateStoreProvider {
  def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore

  def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore

  override def getStore(version: Long, stateStoreCkptId: Option[String]): StateStore =
    getStore(version, stateStoreCkptId, forceSnapshotOnCommit = false, loadEmpty = false)
}
