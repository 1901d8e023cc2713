package org.apache.spark.sql.redisstate

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.internal.StaticSQLConf

/** Advice for a user whose query needs the extension. */
private[redisstate] object TransformWithStateAdvice {

  /** Returns the advice; None where a query has no such operator, or the extension is set. */
  def of(plan: LogicalPlan, extensions: Option[String]): Option[String] = {
    val name = classOf[RedisStateSparkExtension].getName
    val there = extensions.exists(_.split(',').exists(_.trim == name))
    if (there || !plan.exists(_.nodeName.startsWith("TransformWithState"))) None
    else {
      Some("transformWithState on this state store needs an extension of the Spark session: set " +
        s"${StaticSQLConf.SPARK_SESSION_EXTENSIONS.key}=$name before the session starts, or call redis_state.configure.")
    }
  }
}
