package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** A provider that can be given a version which it did not build from the ones before: what moves state asks for that. */
private[redisstate] trait OpensEmpty extends StateStoreProvider {

  /**
   * A store that begins with nothing, whose commit gives the version after this one.
   *
   * @param uid that the commit is to have, whichever attempt makes it; None for a new one
   */
  private[redisstate] def getEmptyStore(version: Long, uid: Option[String]): StateStore
}
