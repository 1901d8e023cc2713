package org.apache.spark.sql.redisstate

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.StreamExecution

/** Spark 4.0 keeps a query's own session to itself; when a query starts, the user's has the same settings. */
private[redisstate] object QuerySession {
  def of(query: StreamExecution): SparkSession = query.sparkSession
}
