package org.apache.spark.sql.redisstate

import org.scalatest.Suites

import org.apache.spark.sql.streaming._

/** Spark's own suites of stream-stream joins, in all of its state formats, on our provider. */
class SparkJoinQueriesSuite
    extends Suites(
      new StreamingInnerJoinV4SuiteOnRedis,
      new StreamingOuterJoinV4SuiteOnRedis,
      new StreamingFullOuterJoinV4SuiteOnRedis,
      new StreamingLeftSemiJoinV4SuiteOnRedis,
      new StreamingInnerJoinWithVCFSuiteOnRedis,
      new StreamingOuterJoinWithVCFSuiteOnRedis,
      new StreamingFullOuterJoinWithVCFSuiteOnRedis,
      new StreamingLeftSemiJoinWithVCFSuiteOnRedis,
      new StreamingInnerJoinWithoutVCFSuiteOnRedis,
      new StreamingOuterJoinWithoutVCFSuiteOnRedis,
      new StreamingFullOuterJoinWithoutVCFSuiteOnRedis,
      new StreamingLeftSemiJoinWithoutVCFSuiteOnRedis
    )

private class StreamingInnerJoinV4SuiteOnRedis extends StreamingInnerJoinV4Suite with OnRedis
private class StreamingOuterJoinV4SuiteOnRedis extends StreamingOuterJoinV4Suite with OnRedis
private class StreamingFullOuterJoinV4SuiteOnRedis extends StreamingFullOuterJoinV4Suite
    with OnRedis
private class StreamingLeftSemiJoinV4SuiteOnRedis extends StreamingLeftSemiJoinV4Suite with OnRedis
private class StreamingInnerJoinWithVCFSuiteOnRedis extends StreamingInnerJoinWithVCFSuite
    with OnRedis
private class StreamingOuterJoinWithVCFSuiteOnRedis extends StreamingOuterJoinWithVCFSuite
    with OnRedis
private class StreamingFullOuterJoinWithVCFSuiteOnRedis extends StreamingFullOuterJoinWithVCFSuite
    with OnRedis
private class StreamingLeftSemiJoinWithVCFSuiteOnRedis extends StreamingLeftSemiJoinWithVCFSuite
    with OnRedis
private class StreamingInnerJoinWithoutVCFSuiteOnRedis extends StreamingInnerJoinWithoutVCFSuite
    with OnRedis
private class StreamingOuterJoinWithoutVCFSuiteOnRedis extends StreamingOuterJoinWithoutVCFSuite
    with OnRedis
private class StreamingFullOuterJoinWithoutVCFSuiteOnRedis
    extends StreamingFullOuterJoinWithoutVCFSuite with OnRedis
private class StreamingLeftSemiJoinWithoutVCFSuiteOnRedis
    extends StreamingLeftSemiJoinWithoutVCFSuite with OnRedis
