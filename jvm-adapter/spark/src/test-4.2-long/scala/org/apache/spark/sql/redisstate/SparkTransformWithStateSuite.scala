package org.apache.spark.sql.redisstate

import org.scalatest.Suites

import org.apache.spark.sql.streaming._

/** Spark's own suites of `transformWithState`, on our provider. */
class SparkTransformWithStateSuite
    extends Suites(
      new TransformWithStateUnsafeRowSuiteOnRedis,
      new TransformWithStateAvroSuiteOnRedis,
      new TransformWithListStateSuiteOnRedis,
      new TransformWithListStateTTLSuiteOnRedis,
      new TransformWithMapStateSuiteOnRedis,
      new TransformWithMapStateTTLSuiteOnRedis,
      new TransformWithValueStateTTLSuiteOnRedis,
      new TransformWithStateInitialStateSuiteOnRedis,
      new TransformWithStateChainingSuiteOnRedis
    )

private class TransformWithStateUnsafeRowSuiteOnRedis extends TransformWithStateUnsafeRowSuite
    with OnRedisOnce
private class TransformWithStateAvroSuiteOnRedis extends TransformWithStateAvroSuite
    with OnRedisOnce
private class TransformWithListStateSuiteOnRedis extends TransformWithListStateSuite
    with OnRedisOnce
private class TransformWithListStateTTLSuiteOnRedis extends TransformWithListStateTTLSuite
    with OnRedisOnce
private class TransformWithMapStateSuiteOnRedis extends TransformWithMapStateSuite with OnRedisOnce
private class TransformWithMapStateTTLSuiteOnRedis extends TransformWithMapStateTTLSuite
    with OnRedisOnce
private class TransformWithValueStateTTLSuiteOnRedis extends TransformWithValueStateTTLSuite
    with OnRedisOnce
private class TransformWithStateInitialStateSuiteOnRedis extends TransformWithStateInitialStateSuite
    with OnRedisOnce
private class TransformWithStateChainingSuiteOnRedis extends TransformWithStateChainingSuite
    with OnRedisOnce
