package org.apache.spark.sql.redisstate

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.Suites

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/** Spark's own suites of state variables and timers, from its published test jar, on our provider. */
class SparkStateVariablesSuite
    extends Suites(
      new ValueStateSuiteOnRedis,
      new ListStateSuiteOnRedis,
      new MapStateSuiteOnRedis,
      new TimerSuiteOnRedis,
      new StatefulProcessorHandleSuiteOnRedis)

private trait VariablesOnRedis extends StateVariableSuiteBase with OnRedis {
  override protected def newStoreProviderWithStateVariable(
      storeId: StateStoreId,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      sqlConf: SQLConf,
      conf: Configuration,
      useColumnFamilies: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): RocksDBStateStoreProvider = {
    val provider = new RedisAsRocksDBProvider
    conf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    provider.init(
      storeId,
      schemaForKeyRow,
      schemaForValueRow,
      keyStateEncoderSpec,
      useColumnFamilies,
      new StateStoreConf(sqlConf),
      conf,
      useMultipleValuesPerKey,
      stateSchemaProvider.orElse(Some(new TestStateSchemaProvider))
    )
    provider
  }
}

private class ValueStateSuiteOnRedis extends ValueStateSuite with VariablesOnRedis
private class ListStateSuiteOnRedis extends ListStateSuite with VariablesOnRedis
private class MapStateSuiteOnRedis extends MapStateSuite with VariablesOnRedis
private class TimerSuiteOnRedis extends TimerSuite with VariablesOnRedis
private class StatefulProcessorHandleSuiteOnRedis
    extends StatefulProcessorHandleSuite with VariablesOnRedis
