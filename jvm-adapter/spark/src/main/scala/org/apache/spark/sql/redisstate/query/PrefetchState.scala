package org.apache.spark.sql.redisstate.query

import scala.util.Try

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeProjection
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  BaseStreamingDeduplicateExec,
  SessionWindowStateStoreRestoreExec,
  StateStoreRestoreExec,
  StatefulOperatorStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExec
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.stores.TaskStores

/**
 * Input of a stateful operator, whose rows it hands on unchanged and in order. Meanwhile it has the
 * state of the rows to come read from files, many at a time: the operator itself asks for one row
 * after the other.
 *
 * @param keys of the state, as the operator projects them
 * @param byPrefix whether the operator asks for all rows whose keys begin with these columns
 * @param operator its id
 */
private[redisstate] final case class PrefetchState(
    keys: Seq[Attribute],
    byPrefix: Boolean,
    operator: Long,
    child: SparkPlan)
    extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering

  override protected def doExecute(): RDD[InternalRow] = {
    val (keys, input, operator, byPrefix) = (this.keys, child.output, this.operator, this.byPrefix)
    child.execute().mapPartitionsInternal { rows =>
      new PrefetchedRows(
        rows,
        () => TaskStores.find(operator, StateStoreId.DEFAULT_STORE_NAME),
        () => GenerateUnsafeProjection.generate(keys, input),
        byPrefix)
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): PrefetchState =
    copy(child = newChild)
}

/**
 * Rule that puts `PrefetchState` below operators whose state may be in files. Comes after all rules
 * that give a streaming operator its state.
 */
private[redisstate] object PrefetchStateRule extends Rule[SparkPlan] {

  /** Scan of real-time mode, which waits for rows: none may be held back there. */
  private val RealTimeScan = "RealTimeStreamScan"

  /**
   * An operator that asks for state by the rows of its first child.
   *
   * @param keys see `PrefetchState`
   */
  private final case class Reader(
      keys: Seq[Attribute],
      info: Option[StatefulOperatorStateInfo],
      byPrefix: Boolean = false)

  private def reader(plan: SparkPlan): Option[Reader] = (plan match {
    case one: StateStoreRestoreExec => Some(Reader(one.keyExpressions, one.stateInfo))
    case one: BaseStreamingDeduplicateExec => Some(Reader(one.keyExpressions, one.stateInfo))
    case one: FlatMapGroupsWithStateExec => Some(Reader(one.groupingAttributes, one.stateInfo))
    case one: FlatMapGroupsInPandasWithStateExec =>
      Some(Reader(one.groupingAttributes, one.stateInfo))
    case one: SessionWindowStateStoreRestoreExec =>
      Some(Reader(one.keyWithoutSessionExpressions, one.stateInfo, byPrefix = true))
    case _ => None
  }).filter(found => found.info.nonEmpty && found.keys.nonEmpty)

  override def apply(plan: SparkPlan): SparkPlan =
    if (!plan.exists(reader(_).nonEmpty) || !hasFiles || plan.exists(_.nodeName == RealTimeScan))
      plan
    else plan.transformUp { case operator => reader(operator).fold(operator)(over(operator, _)) }

  /** Returns whether state may be in files. The store reports a wrong option. */
  private def hasFiles: Boolean =
    Try(RedisStateConf(conf.getAllConfs, conf.minBatchesToRetain).needsFiles).getOrElse(false)

  private def over(operator: SparkPlan, reads: Reader): SparkPlan = operator.children.head match {
    case _: PrefetchState => operator
    case input =>
      val ahead = PrefetchState(reads.keys, reads.byPrefix, reads.info.get.operatorId, input)
      operator.withNewChildren(ahead +: operator.children.tail)
  }
}
