package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/**
 * The operator of Spark 4.3, whose operators have other parameters than those of 4.2, with all
 * its parameters: by name, because neighbours of one type could be swapped unnoticed.
 */
private[redisstate] abstract class TransformWithStateCopy(of: TransformWithStateExec)
    extends TransformWithStateExec(
      keyDeserializer = of.keyDeserializer,
      valueDeserializer = of.valueDeserializer,
      groupingAttributes = of.groupingAttributes,
      dataAttributes = of.dataAttributes,
      statefulProcessor = of.statefulProcessor,
      timeMode = of.timeMode,
      outputMode = of.outputMode,
      keyEncoder = of.keyEncoder,
      outputObjAttr = of.outputObjAttr,
      stateInfo = of.stateInfo,
      batchTimestampMs = of.batchTimestampMs,
      prevBatchTimestampMs = of.prevBatchTimestampMs,
      eventTimeWatermarkForLateEvents = of.eventTimeWatermarkForLateEvents,
      eventTimeWatermarkForEviction = of.eventTimeWatermarkForEviction,
      child = of.child,
      isStreaming = of.isStreaming,
      hasInitialState = of.hasInitialState,
      isRealTimeMode = of.isRealTimeMode,
      initialStateGroupingAttrs = of.initialStateGroupingAttrs,
      initialStateDataAttrs = of.initialStateDataAttrs,
      initialStateDeserializer = of.initialStateDeserializer,
      initialState = of.initialState
    )

/** Copy of the operator for processors in Python. */
private[redisstate] abstract class TransformWithStateInPySparkCopy(
    of: TransformWithStateInPySparkExec)
    extends TransformWithStateInPySparkExec(
      functionExpr = of.functionExpr,
      groupingAttributes = of.groupingAttributes,
      outputAttrs = of.outputAttrs,
      outputMode = of.outputMode,
      timeMode = of.timeMode,
      stateInfo = of.stateInfo,
      batchTimestampMs = of.batchTimestampMs,
      prevBatchTimestampMs = of.prevBatchTimestampMs,
      eventTimeWatermarkForLateEvents = of.eventTimeWatermarkForLateEvents,
      eventTimeWatermarkForEviction = of.eventTimeWatermarkForEviction,
      userFacingDataType = of.userFacingDataType,
      child = of.child,
      isStreaming = of.isStreaming,
      hasInitialState = of.hasInitialState,
      initialState = of.initialState,
      initialStateGroupingAttrs = of.initialStateGroupingAttrs,
      initialStateSchema = of.initialStateSchema
    )
