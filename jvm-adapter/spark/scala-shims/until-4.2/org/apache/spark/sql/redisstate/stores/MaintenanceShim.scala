package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Until 4.2 Spark asks for all maintenance in one call. */
private[redisstate] trait MaintenanceShim extends StateStoreProvider {
  protected def addSnapshot(): Unit
  protected def removeExpired(): Unit

  override def doMaintenance(): Unit = {
    addSnapshot()
    removeExpired()
  }
}
