package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** A provider that can read and write whole versions, for moves of state. */
private[redisstate] trait MovesState extends StateStoreProvider {

  /** A version, for one pass over its rows. */
  private[redisstate] def getStoreToScan(version: Long, uid: Option[String]): RedisReadStateStore

  /**
   * Begins with nothing; the commit gives the version after this one, whatever is there before.
   *
   * @param uid that the commit is to have, whichever attempt makes it; None for a new one
   * @param timeS of the version, if its rows expire
   */
  private[redisstate] def getStoreToFill(
      version: Long,
      uid: Option[String],
      timeS: Option[Long]): RedisFill
}
