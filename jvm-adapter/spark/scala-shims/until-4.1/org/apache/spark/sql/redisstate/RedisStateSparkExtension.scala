package org.apache.spark.sql.redisstate

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** Until 4.1 Spark's `transformWithState` takes every provider: a conf that names this class does no harm. */
class RedisStateSparkExtension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = ()
}

/** Advice for a user whose query needs the extension: no query does. */
private[redisstate] object TransformWithStateAdvice {
  def of(plan: LogicalPlan, extensions: Option[String]): Option[String] = None
}
