package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/**
 * Spark 4.3 has two pools, one for snapshots and one for cleaning up; `doMaintenance` stays for
 * callers of the older interface.
 */
private[redisstate] trait MaintenanceShim extends StateStoreProvider {
  protected def addSnapshot(): Unit
  protected def removeExpired(): Unit

  override def doSnapshotMaintenance(): Unit = addSnapshot()
  override def doCleanupMaintenance(): Unit = removeExpired()

  override def doMaintenance(): Unit = {
    addSnapshot()
    removeExpired()
  }
}
