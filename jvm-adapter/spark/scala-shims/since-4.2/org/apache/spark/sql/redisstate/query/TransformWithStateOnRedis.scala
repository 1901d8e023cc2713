package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/**
 * Spark's `transformWithState`, which takes RocksDB's provider by its class name and no other, on
 * this one. It is a class of its own for `transformUp` too: that drops a node that equals the one
 * before.
 */
private[redisstate] final class TransformWithStateOnRedis(of: TransformWithStateExec)
    extends TransformWithStateCopy(of) {
  override def nodeName: String = TransformWithStateOnRedis.Name
  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
  override def canEqual(other: Any): Boolean = other.isInstanceOf[TransformWithStateOnRedis]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode

  override protected def withNewChildrenInternal(
      left: SparkPlan,
      right: SparkPlan): TransformWithStateExec =
    new TransformWithStateOnRedis(super.withNewChildrenInternal(left, right))

  override def makeCopy(args: Array[AnyRef]): SparkPlan =
    new TransformWithStateOnRedis(copy().makeCopy(args).asInstanceOf[TransformWithStateExec])
}

private[redisstate] object TransformWithStateOnRedis {
  private val Name = "TransformWithState"
}

/** `TransformWithStateOnRedis` for processors in Python. */
private[redisstate] final class TransformWithStateInPySparkOnRedis(
    of: TransformWithStateInPySparkExec)
    extends TransformWithStateInPySparkCopy(of) {
  override def nodeName: String = TransformWithStateInPySparkOnRedis.Name
  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit = ()
  override def canEqual(other: Any): Boolean =
    other.isInstanceOf[TransformWithStateInPySparkOnRedis]
  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)
  override def hashCode: Int = super.hashCode

  override protected def withNewChildrenInternal(
      left: SparkPlan,
      right: SparkPlan): TransformWithStateInPySparkExec =
    new TransformWithStateInPySparkOnRedis(super.withNewChildrenInternal(left, right))

  override def makeCopy(args: Array[AnyRef]): SparkPlan =
    new TransformWithStateInPySparkOnRedis(
      copy().makeCopy(args).asInstanceOf[TransformWithStateInPySparkExec])
}

private[redisstate] object TransformWithStateInPySparkOnRedis {
  private val Name = "TransformWithStateInPySpark"
}
