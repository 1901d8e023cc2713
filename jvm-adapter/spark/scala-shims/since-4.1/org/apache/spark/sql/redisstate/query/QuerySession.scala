package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** Since 4.1 Spark shows a query's own session. */
private[redisstate] object QuerySession {
  def of(query: StreamExecution): SparkSession = query.sparkSessionForStream
}
