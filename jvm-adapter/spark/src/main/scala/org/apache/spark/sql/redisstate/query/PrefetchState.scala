package org.apache.spark.sql.redisstate.query

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression, SortOrder}
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeProjection
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}

/**
 * Passes the input of a stateful operator on, unchanged and in order, and reads the state for the
 * next rows from files, many at a time: the operator itself would ask for one row after the other.
 *
 * @param keys of the state, as the operator projects them
 * @param reads state that the operator needs for these keys
 * @param operator its id
 */
private[redisstate] final case class PrefetchState(
    keys: Seq[Expression],
    reads: StateReads,
    operator: Long,
    child: SparkPlan)
    extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering

  override protected def doExecute(): RDD[InternalRow] = {
    val (keys, input, operator, reads) = (this.keys, child.output, this.operator, this.reads)
    child.execute().mapPartitionsInternal { rows =>
      reads.over(rows, operator, () => GenerateUnsafeProjection.generate(keys, input))
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): PrefetchState =
    copy(child = newChild)
}
