package org.apache.spark.sql.redisstate

import org.scalatest.Suites

import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider
import org.apache.spark.sql.internal.SQLConf

/** Spark's own suites of its state reader, from its published test jar, on our provider. */
class SparkStateReaderSuite
    extends Suites(
      new StateDataSourceReadSuiteOnRedis,
      new StateDataSourceReadSuiteOnRedisWithIds,
      new StateDataSourceChangeDataReaderSuiteOnRedis,
      new StateDataSourceTransformWithStateSuiteOnRedis,
      new StateDataSourceNegativeTestSuiteOnRedis
    )

private class StateDataSourceReadSuiteOnRedis extends StateDataSourceReadSuite with OnRedis {
  override protected def newStateStoreProvider(): StateStoreProvider = Tight.newProvider()
}

private class StateDataSourceReadSuiteOnRedisWithIds extends StateDataSourceReadSuiteOnRedis {
  override def beforeAll(): Unit = {
    super.beforeAll()
    spark.conf.set(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key, "2")
  }
}

private class StateDataSourceChangeDataReaderSuiteOnRedis
    extends StateDataSourceChangeDataReaderSuite with OnRedis {
  override protected def newStateStoreProvider(): StateStoreProvider = Tight.newProvider()
}

private class StateDataSourceTransformWithStateSuiteOnRedis
    extends StateDataSourceTransformWithStateSuite with OnRedisOnce

private class StateDataSourceNegativeTestSuiteOnRedis
    extends StateDataSourceNegativeTestSuite with OnRedis
