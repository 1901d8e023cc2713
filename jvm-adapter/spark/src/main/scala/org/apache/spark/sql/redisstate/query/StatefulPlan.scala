package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.catalyst.plans.logical.{Join, LogicalPlan}

/**
 * Checks whether a query will keep state. If that is unknown, the first task that writes decides on
 * the gen.
 */
private[redisstate] object StatefulPlan {

  /** Operators by class name, since some do not exist in every Spark minor. */
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
