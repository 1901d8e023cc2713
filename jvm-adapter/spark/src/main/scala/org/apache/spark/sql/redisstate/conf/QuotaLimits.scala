package org.apache.spark.sql.redisstate.conf

/**
 * @param state bytes that the state of a query may have in Redis
 * @param prefix bytes that all states of its key prefix may have
 */
private[redisstate] final case class QuotaLimits(state: Option[Long], prefix: Option[Long]) {
  def isSet: Boolean = state.nonEmpty || prefix.nonEmpty
}
