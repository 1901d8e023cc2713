package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.redisstate.query.{
  TransformWithStateInPySparkOnRedis,
  TransformWithStateOnRedis
}

/** Plan of a query with `transformWithState`, whose operators run on this provider. */
private[redisstate] object ProcessorsOnRedis {
  def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
    case spark: TransformWithStateExec
        if spark.isStreaming && !spark.isInstanceOf[TransformWithStateOnRedis] =>
      new TransformWithStateOnRedis(spark)
    case spark: TransformWithStateInPySparkExec
        if spark.isStreaming && !spark.isInstanceOf[TransformWithStateInPySparkOnRedis] =>
      new TransformWithStateInPySparkOnRedis(spark)
  }
}
