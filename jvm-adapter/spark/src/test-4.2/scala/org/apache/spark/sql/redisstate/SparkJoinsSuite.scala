package org.apache.spark.sql.redisstate

import org.scalatest.Suites

import org.apache.spark.sql.execution.streaming.state._

/** Spark's own suites of joins, from its published test jar, on our provider: those that showed most. */
class SparkJoinsSuite
    extends Suites(
      new SymmetricHashJoinStateManagerSuiteOnRedis,
      new SymmetricHashJoinStateManagerEventTimeInKeySuiteOnRedis,
      new SymmetricHashJoinStateManagerEventTimeInValueSuiteOnRedis
    )

private class SymmetricHashJoinStateManagerSuiteOnRedis
    extends SymmetricHashJoinStateManagerSuite with OnRedis
private class SymmetricHashJoinStateManagerEventTimeInKeySuiteOnRedis
    extends SymmetricHashJoinStateManagerEventTimeInKeySuite with OnRedis
private class SymmetricHashJoinStateManagerEventTimeInValueSuiteOnRedis
    extends SymmetricHashJoinStateManagerEventTimeInValueSuite with OnRedis
