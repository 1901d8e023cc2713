package org.apache.spark.sql.redisstate.conf

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}

import org.redisstate.core.errors.ConfigException

/** Operators of Spark whose rows can have a time to live (docs/time-to-live.md). */
private[redisstate] object ExpiringOperators {
  private val JoinStore = "(left|right)-(keyToNumValues|keyWithIndexToValue)".r

  /** Returns whether a store is one of the four of a join, whose rows expire with those of the others. */
  def isJoin(id: StateStoreId): Boolean = JoinStore.matches(id.storeName)

  /**
   * @param hasFamilies whether the operator keeps column families
   * @param ttlMs time to live that the options give the operator
   * @throws ConfigException for an operator whose rows cannot expire, or that has its own expiry
   */
  def check(id: StateStoreId, hasFamilies: Boolean, ttlMs: Option[Long]): Unit = {
    if (ttlMs.nonEmpty && isJoin(id) && !SparkMinor.ReadsJoinsOnly)
      throw refused(
        id,
        s"is a join, and the state reader of Spark ${SparkMinor.BuiltFor} opens the stores of a join for writing",
        "Bound it by watermarks on both sides and a condition on their times, or run it on Spark 4.3"
      )
    if (ttlMs.nonEmpty && hasFamilies && id.storeName == StateStore.DEFAULT_COL_FAMILY_NAME)
      throw refused(
        id,
        "keeps several column families: it is transformWithState, or a join of state format 3 or 4",
        OwnExpiry)
  }

  /**
   * Checks a store whose rows expire before it is opened for writing in a session without a time to
   * live: then the next version is written as a whole, for which the run acquires the partition.
   *
   * @param isOfBatch whether a batch opens it, and not the state reader
   * @throws ConfigException for a join whose stores the state reader opens for writing
   */
  def checkRewrite(id: StateStoreId, isOfBatch: => Boolean): Unit =
    if (isJoin(id) && !SparkMinor.ReadsJoinsOnly && !isOfBatch)
      throw new ConfigException(
        s"read the state of operator ${id.operatorId}: its rows have a time to live, and the state reader of Spark " +
          s"${SparkMinor.BuiltFor} opens the stores of a join for writing. Read it on Spark 4.3, or with redis-state. " +
          "Nothing was changed.")

  private val OwnExpiry =
    "transformWithState has a TTLConfig for each state variable. A new join of state format 2, which is the default, can have a time to " +
      "live; this one is bound by watermarks on both sides and a condition on their times"

  private def refused(id: StateStoreId, found: String, instead: String): ConfigException =
    new ConfigException(
      s"option 'stateTtl' for operator ${id.operatorId}: it $found. $instead. To give other operators of " +
        s"the query a time to live, name them: ${RedisStateConf.Prefix}stateTtl.<operator id>. " +
        "Nothing was changed.")
}
