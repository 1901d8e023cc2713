package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** The operator of Spark 4.3, whose operators have other parameters than those of 4.2, with all that one has. */
private[redisstate] abstract class TransformWithStateCopy(of: TransformWithStateExec)
    extends TransformWithStateExec(
      of.keyDeserializer,
      of.valueDeserializer,
      of.groupingAttributes,
      of.dataAttributes,
      of.statefulProcessor,
      of.timeMode,
      of.outputMode,
      of.keyEncoder,
      of.outputObjAttr,
      of.stateInfo,
      of.batchTimestampMs,
      of.prevBatchTimestampMs,
      of.eventTimeWatermarkForLateEvents,
      of.eventTimeWatermarkForEviction,
      of.child,
      of.isStreaming,
      of.hasInitialState,
      of.isRealTimeMode,
      of.initialStateGroupingAttrs,
      of.initialStateDataAttrs,
      of.initialStateDeserializer,
      of.initialState
    )

/** As above, for processors in Python. */
private[redisstate] abstract class TransformWithStateInPySparkCopy(
    of: TransformWithStateInPySparkExec)
    extends TransformWithStateInPySparkExec(
      of.functionExpr,
      of.groupingAttributes,
      of.outputAttrs,
      of.outputMode,
      of.timeMode,
      of.stateInfo,
      of.batchTimestampMs,
      of.prevBatchTimestampMs,
      of.eventTimeWatermarkForLateEvents,
      of.eventTimeWatermarkForEviction,
      of.userFacingDataType,
      of.child,
      of.isStreaming,
      of.hasInitialState,
      of.initialState,
      of.initialStateGroupingAttrs,
      of.initialStateSchema
    )
