package org.apache.spark.sql.redisstate.move.engine

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** Since 4.2 Spark opens a store at a version as if it held nothing. */
private[redisstate] object EmptyStore {

  /** True if Spark's RocksDB provider can write a version that it has not reached. */
  val IsSparks: Boolean = true

  /** Opens a store; its commit makes the version after this one, which stands alone. */
  def at(provider: StateStoreProvider, version: Long): StateStore =
    provider.getStore(version, None, forceSnapshotOnCommit = true, loadEmpty = true)
}
