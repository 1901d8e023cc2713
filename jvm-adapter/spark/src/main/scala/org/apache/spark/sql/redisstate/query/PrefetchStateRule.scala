package org.apache.spark.sql.redisstate.query

import scala.util.Try

import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.{
  FlatMapGroupsInPandasWithStateExec,
  TransformWithStateInPySparkExec
}
import org.apache.spark.sql.execution.streaming.operators.stateful.{
  BaseStreamingDeduplicateExec,
  SessionWindowStateStoreRestoreExec,
  StateStoreRestoreExec,
  StatefulOperatorStateInfo
}
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper.{
  JoinStateKeyWatermarkPredicate,
  JoinStateValueWatermarkPredicate,
  JoinStateWatermarkPredicate
}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.stores.joins.JoinRemoval
import org.apache.spark.sql.types.{StructField, StructType}

/**
 * Rule that puts `PrefetchState` below operators whose state may be in files. Comes after all rules
 * that give a streaming operator its state.
 */
private[redisstate] object PrefetchStateRule extends Rule[SparkPlan] {
  import StateReads._

  /** Scan of real-time mode, which waits for rows: no row may be held back there. */
  private val RealTimeScan = "RealTimeStreamScan"

  /**
   * An input of an operator that needs state for its rows.
   *
   * @param keys see `PrefetchState`
   */
  private final case class Input(keys: Seq[Expression], reads: StateReads)

  /**
   * An operator that needs state for the rows of its first children.
   *
   * @param inputs one for each of these children
   */
  private final case class Reader(info: Option[StatefulOperatorStateInfo], inputs: Input*)

  private def reader(plan: SparkPlan): Option[Reader] = (plan match {
    case one: StateStoreRestoreExec =>
      Some(Reader(one.stateInfo, Input(one.keyExpressions, RowOfKey)))
    case one: BaseStreamingDeduplicateExec =>
      Some(Reader(one.stateInfo, Input(one.keyExpressions, RowOfKey)))
    case one: FlatMapGroupsWithStateExec =>
      Some(Reader(one.stateInfo, Input(one.groupingAttributes, RowOfKey)))
    case one: FlatMapGroupsInPandasWithStateExec =>
      Some(Reader(one.stateInfo, Input(one.groupingAttributes, RowOfKey)))
    case one: SessionWindowStateStoreRestoreExec =>
      Some(Reader(one.stateInfo, Input(one.keyWithoutSessionExpressions, RowsOfPrefix)))
    case one: TransformWithStateExec if one.isStreaming =>
      Some(Reader(one.stateInfo, ofGroups(one.groupingAttributes)))
    case one: TransformWithStateInPySparkExec if one.isStreaming =>
      Some(Reader(one.stateInfo, ofGroups(one.groupingAttributes)))
    case one: StreamingSymmetricHashJoinExec => Some(ofJoin(one))
    case _ => None
  }).filter(found => found.info.nonEmpty && found.inputs.forall(_.keys.nonEmpty))

  private def ofGroups(keys: Seq[Attribute]): Input =
    Input(
      keys,
      RowsOfGroup(StructType(keys.map(key => StructField(key.name, key.dataType, key.nullable)))))

  private def ofJoin(join: StreamingSymmetricHashJoinExec): Reader = {
    def input(isLeft: Boolean, keys: Seq[Expression], old: Option[JoinStateWatermarkPredicate]) =
      Input(keys, RowsOfJoin(isLeft, join.stateFormatVersion, old.flatMap(removalBy)))
    Reader(
      join.stateInfo,
      input(isLeft = true, join.leftKeys, join.stateWatermarkPredicates.left),
      input(isLeft = false, join.rightKeys, join.stateWatermarkPredicates.right)
    )
  }

  private def removalBy(old: JoinStateWatermarkPredicate): Option[JoinRemoval] = old match {
    case one: JoinStateKeyWatermarkPredicate => Some(JoinRemoval.ByKey(one.expr))
    case _: JoinStateValueWatermarkPredicate => Some(JoinRemoval.ByValue)
  }

  override def apply(plan: SparkPlan): SparkPlan =
    if (!plan.exists(reader(_).nonEmpty) || !hasFiles || plan.exists(_.nodeName == RealTimeScan))
      plan
    else plan.transformUp { case operator => reader(operator).fold(operator)(over(operator, _)) }

  /** Returns whether state may be in files. The store reports a wrong option. */
  private def hasFiles: Boolean =
    Try(RedisStateConf(conf.getAllConfs, conf.minBatchesToRetain).needsFiles).getOrElse(false)

  private def over(operator: SparkPlan, reads: Reader): SparkPlan = operator.children.head match {
    case _: PrefetchState => operator
    case _ =>
      val ahead = reads.inputs.zip(operator.children).map { case (input, child) =>
        PrefetchState(input.keys, input.reads, reads.info.get.operatorId, child)
      }
      operator.withNewChildren(ahead ++ operator.children.drop(ahead.length))
  }
}
