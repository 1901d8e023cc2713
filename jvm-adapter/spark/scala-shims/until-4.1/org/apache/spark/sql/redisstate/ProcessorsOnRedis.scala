package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.SparkPlan

/** Plan of a query with `transformWithState`: until 4.1 Spark's own runs on this provider. */
private[redisstate] object ProcessorsOnRedis {
  def apply(plan: SparkPlan): SparkPlan = plan
}
