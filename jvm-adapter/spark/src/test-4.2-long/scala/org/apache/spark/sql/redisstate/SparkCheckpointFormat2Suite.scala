package org.apache.spark.sql.redisstate

import org.apache.hadoop.conf.Configuration
import org.scalactic.source.Position
import org.scalatest.Tag

import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.types.StructType

import org.redisstate.core.RedisServerProcess

/**
 * As Spark's `CkptIdCollectingStateStoreProviderWrapper`, which collects what stores report, round
 * our provider.
 */
class IdCollectingProvider extends StateStoreProvider {
  private val inner = Tight.newProvider()

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit =
    inner.init(
      stateStoreId,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useColumnFamilies,
      storeConfs,
      hadoopConf,
      useMultipleValuesPerKey,
      stateSchemaProvider)

  override def stateStoreId: StateStoreId = inner.stateStoreId
  override def close(): Unit = inner.close()
  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = inner.supportedCustomMetrics
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] =
    inner.supportedInstanceMetrics
  override def doMaintenance(): Unit = inner.doMaintenance()

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    CkptIdCollectingStateStoreWrapper(
      inner.getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty))

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore =
    inner.getReadStore(version, uniqueId)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore =
    CkptIdCollectingStateStoreWrapper(
      inner.upgradeReadStoreToWriteStore(readStore, version, uniqueId, forceSnapshotOnCommit))
}

/** Spark's own suite for checkpoint format 2, from its published test jar, on our provider. */
class SparkCheckpointFormat2Suite extends RocksDBStateStoreCheckpointFormatV2Suite {
  private lazy val server = new RedisServerProcess

  override val providerClassName: String = classOf[IdCollectingProvider].getName

  override protected def sparkConf: SparkConf =
    super.sparkConf
      .setAll(Tight.settings)
      .set(RedisStateConf.Prefix + "url", server.url)
      .set("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")

  /** RocksDB's change log is an option of RocksDB: the tests run once, not with and without it. */
  override protected def test(testName: String, testTags: Tag*)(testBody: => Any)(implicit
      pos: Position): Unit =
    testWithChangelogCheckpointingEnabled(testName, testTags: _*)(testBody)

  override def testWithChangelogCheckpointingEnabled(testName: String, testTags: Tag*)(
      testBody: => Any): Unit =
    if (NotRun.reason(getClass, testName).isEmpty)
      super.testWithChangelogCheckpointingEnabled(testName, testTags: _*)(onRedis(testBody))

  override def testWithRocksDBStateStore(testName: String, testTags: Tag*)(
      testBody: => Any): Unit =
    super.testWithRocksDBStateStore(testName, testTags: _*)(onRedis(testBody))

  private def onRedis(body: => Any): Unit =
    withSQLConf(SQLConf.STATE_STORE_PROVIDER_CLASS.key -> OnRedis.Ours)(body)

  override def afterAll(): Unit =
    try super.afterAll()
    finally {
      StateStore.stop()
      try Tight.check(getClass, server.url)
      finally server.close()
    }
}
