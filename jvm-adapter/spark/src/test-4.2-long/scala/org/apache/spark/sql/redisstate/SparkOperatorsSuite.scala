package org.apache.spark.sql.redisstate

import org.scalatest.Suites

import org.apache.spark.sql.streaming._
import org.apache.spark.sql.execution.streaming.EventTimeWatermarkWithWatermarkDefInSelectSuite
import org.apache.spark.sql.execution.streaming.state._

/**
 * Spark's own suites of aggregations, deduplication, session windows, watermarks and several
 * operators in a row, on our provider.
 */
class SparkOperatorsSuite
    extends Suites(
      new StreamingAggregationSuiteOnRedis,
      new StreamingAggregationStateManagerSuiteOnRedis,
      new StreamingDeduplicationSuiteOnRedis,
      new StreamingDeduplicationWithinWatermarkSuiteOnRedis,
      new StreamingSessionWindowSuiteOnRedis,
      new StreamingSessionWindowStateManagerSuiteOnRedis,
      new EventTimeWatermarkSuiteOnRedis,
      new EventTimeWatermarkWithWatermarkDefInSelectSuiteOnRedis,
      new MultiStatefulOperatorsSuiteOnRedis,
      new FlatMapGroupsWithStateSuiteOnRedis,
      new FlatMapGroupsWithStateWithInitialStateSuiteOnRedis,
      new FlatMapGroupsWithStateExecHelperSuiteOnRedis,
      new StreamingSelfUnionSuiteOnRedis
    )

private class StreamingAggregationSuiteOnRedis extends StreamingAggregationSuite with OnRedis
private class StreamingAggregationStateManagerSuiteOnRedis
    extends StreamingAggregationStateManagerSuite with OnRedis
private class StreamingDeduplicationSuiteOnRedis extends StreamingDeduplicationSuite with OnRedis
private class StreamingDeduplicationWithinWatermarkSuiteOnRedis
    extends StreamingDeduplicationWithinWatermarkSuite with OnRedis
private class StreamingSessionWindowSuiteOnRedis extends StreamingSessionWindowSuite with OnRedis
private class StreamingSessionWindowStateManagerSuiteOnRedis
    extends StreamingSessionWindowStateManagerSuite with OnRedis
private class EventTimeWatermarkSuiteOnRedis extends EventTimeWatermarkSuite with OnRedis
private class EventTimeWatermarkWithWatermarkDefInSelectSuiteOnRedis
    extends EventTimeWatermarkWithWatermarkDefInSelectSuite with OnRedis
private class MultiStatefulOperatorsSuiteOnRedis extends MultiStatefulOperatorsSuite with OnRedis
private class FlatMapGroupsWithStateSuiteOnRedis extends FlatMapGroupsWithStateSuite with OnRedis
private class FlatMapGroupsWithStateWithInitialStateSuiteOnRedis
    extends FlatMapGroupsWithStateWithInitialStateSuite with OnRedis
private class FlatMapGroupsWithStateExecHelperSuiteOnRedis
    extends FlatMapGroupsWithStateExecHelperSuite with OnRedis
private class StreamingSelfUnionSuiteOnRedis extends StreamingSelfUnionSuite with OnRedis
