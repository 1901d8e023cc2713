package org.apache.spark.sql.redisstate

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan

/** Advice for a user whose query needs the extension: no query does. */
private[redisstate] object TransformWithStateAdvice {
  def of(plan: LogicalPlan, extensions: Option[String]): Option[String] = None
}
