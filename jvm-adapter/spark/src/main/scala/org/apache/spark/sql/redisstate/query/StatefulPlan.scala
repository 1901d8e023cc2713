package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.catalyst.plans.logical.{Join, LogicalPlan}

/**
 * Whether a query will keep state. If that cannot be told, the first task that writes decides on
 * the gen.
 */
private[redisstate] object StatefulPlan {

  /** By name, since some are not in every Spark minor. */
  private val Operators = Set(
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark"
  )

  def is(plan: LogicalPlan): Boolean =
    plan.exists {
      case join: Join => join.children.forall(_.isStreaming)
      case node => node.isStreaming && Operators(node.nodeName)
    }
}
