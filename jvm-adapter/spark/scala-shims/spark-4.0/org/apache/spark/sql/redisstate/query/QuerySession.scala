package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.StreamExecution

/**
 * Spark 4.0 does not show a query's own session; when a query starts, the user's session has the
 * same settings.
 */
private[redisstate] object QuerySession {
  def of(query: StreamExecution): SparkSession = query.sparkSession
}
