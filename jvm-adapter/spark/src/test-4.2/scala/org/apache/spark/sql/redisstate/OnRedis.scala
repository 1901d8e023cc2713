package org.apache.spark.sql.redisstate

import org.apache.hadoop.conf.Configuration
import org.scalactic.source.Position
import org.scalatest.{Args, Status, SucceededStatus, Tag}

import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.rows.CodecSet
import org.apache.spark.sql.redisstate.stores.{RedisStateStore, StoreHost}
import org.apache.spark.sql.test.SharedSparkSession
import org.apache.spark.sql.types.StructType

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.store.WriteSession

/**
 * Replaces the provider that a suite of Spark's configures by ours. `NotRun` lists the excluded
 * tests and the reasons.
 */
private[redisstate] trait OnRedis extends SharedSparkSession {
  private lazy val server = new RedisServerProcess

  override protected def sparkConf: SparkConf =
    super.sparkConf
      .setAll(Tight.settings)
      .set(RedisStateConf.Prefix + "url", server.url)
      .set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, OnRedis.Ours)
      .set("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")

  override def withSQLConf[T](pairs: (String, String)*)(f: => T): T =
    super.withSQLConf(pairs.map {
      case (SQLConf.STATE_STORE_PROVIDER_CLASS.key, _) =>
        SQLConf.STATE_STORE_PROVIDER_CLASS.key -> OnRedis.Ours
      case other => other
    }: _*)(f)

  /** Spark registers tests in several ways, and runs them all in this one. */
  override protected def runTest(testName: String, args: Args): Status =
    if (NotRun.reason(getClass, testName).isEmpty) super.runTest(testName, args)
    else SucceededStatus

  override def afterAll(): Unit =
    try super.afterAll()
    finally {
      StateStore.stop()
      try Tight.check(getClass, server.url)
      finally server.close()
    }
}

private[redisstate] object OnRedis {
  val Ours: String = Tight.newProvider().getClass.getName
}

/** RocksDB's change log is an option of RocksDB: what Spark tests with and without it runs once. */
private[redisstate] trait OnRedisOnce extends OnRedis with AlsoTestWithRocksDBFeatures {
  private var isForBoth = false

  override protected def test(testName: String, testTags: Tag*)(testBody: => Any)(implicit
      pos: Position): Unit = {
    isForBoth = true
    try super.test(testName, testTags: _*)(testBody)
    finally isForBoth = false
  }

  override def testWithChangelogCheckpointingDisabled(testName: String, testTags: Tag*)(
      testBody: => Any): Unit =
    if (!isForBoth) super.testWithChangelogCheckpointingDisabled(testName, testTags: _*)(testBody)
}

/** Our provider with the type of RocksDB's, for suites that create that provider themselves. */
private[redisstate] class RedisAsRocksDBProvider extends RocksDBStateStoreProvider {
  private var schemas: Option[TestStateSchemaProvider] = None

  /** As RocksDB's provider does for tests, it tells their provider of schemas what is declared. */
  private val ours = new TightProvider {
    override private[redisstate] def newStore(
        session: WriteSession,
        codecs: CodecSet,
        host: StoreHost): RedisStateStore =
      new RedisStateStore(this.stateStoreId, session, codecs, host) {
        override def createColFamilyIfAbsent(
            colFamilyName: String,
            keySchema: StructType,
            valueSchema: StructType,
            keyStateEncoderSpec: KeyStateEncoderSpec,
            useMultipleValuesPerKey: Boolean,
            isInternal: Boolean): Unit = {
          schemas.foreach(_.captureSchema(colFamilyName, keySchema, valueSchema))
          super.createColFamilyIfAbsent(
            colFamilyName,
            keySchema,
            valueSchema,
            keyStateEncoderSpec,
            useMultipleValuesPerKey,
            isInternal)
        }
      }
  }

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    schemas = stateSchemaProvider.collect { case ofTest: TestStateSchemaProvider => ofTest }
    schemas.foreach(
      _.captureSchema(StateStore.DEFAULT_COL_FAMILY_NAME, keySchema, valueSchema))
    ours.init(
      stateStoreId,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useColumnFamilies,
      storeConfs,
      hadoopConf,
      useMultipleValuesPerKey,
      stateSchemaProvider)
  }

  override def stateStoreId: StateStoreId = ours.stateStoreId
  override def close(): Unit = ours.close()
  override def doMaintenance(): Unit = ours.doMaintenance()
  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = ours.supportedCustomMetrics
  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] =
    ours.supportedInstanceMetrics

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    ours.getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty)

  /** RocksDB's gives out one that writes; who only reads does not see the difference. */
  override def getReadStore(version: Long, uniqueId: Option[String]): StateStore =
    ours.getStore(version, uniqueId)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore =
    ours.upgradeReadStoreToWriteStore(readStore, version, uniqueId, forceSnapshotOnCommit)

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore =
    ours.replayStateFromSnapshot(
      snapshotVersion,
      endVersion,
      readOnly,
      snapshotVersionStateStoreCkptId,
      endVersionStateStoreCkptId)
}
