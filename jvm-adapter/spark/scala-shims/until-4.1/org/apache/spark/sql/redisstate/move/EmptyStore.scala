package org.apache.spark.sql.redisstate.move

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}
import org.apache.spark.sql.redisstate.RedisStateStoreProvider

/** Until 4.1 only our own provider opens a store at a version as if it held nothing. */
private[redisstate] object EmptyStore {

  /** Whether Spark's own RocksDB provider can be written at a version that it has not reached. */
  val IsSparks: Boolean = false

  /** What is committed to it is the version after this one, and stands alone. */
  def at(provider: StateStoreProvider, version: Long): StateStore = provider match {
    case ours: RedisStateStoreProvider =>
      ours.getStore(version, None, forceSnapshotOnCommit = true, loadEmpty = true)
    case other => throw new IllegalArgumentException(s"$other begins with version 0")
  }
}
