package org.apache.spark.sql.redisstate

import java.util.UUID
import java.util.concurrent.atomic.AtomicLong

import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.scalactic.source.Position
import org.scalatest.{BeforeAndAfter, BeforeAndAfterAll, Tag}

import org.apache.spark.SparkException
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreTestsHelper._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.rows.CodecSet
import org.apache.spark.sql.redisstate.stores.{RedisStateStore, StoreHost}
import org.apache.spark.sql.types.StructType

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.Clock
import org.redisstate.core.store.WriteSession

/** Spark's own suite for state store providers, from its published test jar, on our provider. */
class SparkStateStoreSuite
    extends StateStoreSuiteBase[RedisStateStoreProvider]
    with BeforeAndAfter
    with BeforeAndAfterAll {

  private lazy val server = new RedisServerProcess

  override protected def test(name: String, tags: Tag*)(body: => Any)(implicit
      pos: Position): Unit =
    if (NotRun.reason(getClass, name).isEmpty) super.test(name, tags: _*)(body)

  override def beforeAll(): Unit = {
    super.beforeAll()
    SQLConf.get.setConfString(RedisStateConf.Prefix + "url", server.url)
    Tight.options.foreach { case (name, value) => SQLConf.get.setConfString(name, value) }
    SQLConf.get.setConfString("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")
  }

  override def afterAll(): Unit =
    try {
      super.afterAll()
      Tight.check(getClass, server.url)
    } finally server.close()

  before(stopStores())
  after(stopStores())

  private def stopStores(): Unit = {
    StateStore.stop()
    require(!StateStore.isMaintenanceRunning)
  }

  override def newStoreProvider(): RedisStateStoreProvider = newStoreProvider(randomId())

  override def newStoreProvider(storeId: StateStoreId): RedisStateStoreProvider =
    newStoreProvider(storeId, useColumnFamilies = false)

  override def newStoreProvider(
      storeId: StateStoreId,
      useColumnFamilies: Boolean): RedisStateStoreProvider =
    made(storeId, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(
      storeId: StateStoreId,
      conf: Configuration): RedisStateStoreProvider =
    made(storeId, hadoopConf = conf)

  override def newStoreProvider(
      minDeltasForSnapshot: Int,
      numOfVersToRetainInMemory: Int): RedisStateStoreProvider =
    made(randomId(), sqlConf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))

  override def newStoreProvider(
      keySchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean): RedisStateStoreProvider =
    made(randomId(), Some(keyStateEncoderSpec), keySchema, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(useColumnFamilies: Boolean): RedisStateStoreProvider =
    made(randomId(), useColumnFamilies = useColumnFamilies)

  override def newStoreProviderWithClonedConf(storeId: StateStoreId): RedisStateStoreProvider =
    made(storeId, sqlConf = cloneSQLConf())

  override def newStoreProviderNoInit(): RedisStateStoreProvider = new LikeRocksDBProvider

  override def getDefaultSQLConf(
      minDeltasForSnapshot: Int,
      numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = SQLConf.get.clone()
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY, numOfVersToRetainInMemory)
    conf
  }

  override def getDefaultStoreConf(): StateStoreConf = new StateStoreConf(SQLConf.get)

  override def getLatestData(
      storeProvider: RedisStateStoreProvider,
      useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    Iterator.from(0).takeWhile(exists(storeProvider.stateStoreId, _)).toSeq.lastOption match {
      case Some(version) => getData(storeProvider, version, useColumnFamilies)
      case None => Set.empty
    }

  override def getData(
      storeProvider: RedisStateStoreProvider,
      version: Int,
      useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    tryWithProviderResource(newStoreProvider(storeProvider.stateStoreId, useColumnFamilies)) {
      fresh =>
        rowPairsToDataSet(fresh.getReadStore(version, None).iterator())
    }

  private def exists(id: StateStoreId, version: Int): Boolean =
    tryWithProviderResource(newStoreProvider(id)) { fresh =>
      try {
        fresh.getReadStore(version, None)
        true
      } catch {
        case e: SparkException if e.getCondition.endsWith("CANNOT_READ_STREAMING_STATE_FILE") =>
          false
      }
    }

  private def randomId(): StateStoreId =
    StateStoreId(newDir(), Random.nextInt(Int.MaxValue).toLong, 0)

  private def made(
      id: StateStoreId,
      spec: Option[KeyStateEncoderSpec] = None,
      keySchema: StructType = keySchema,
      sqlConf: SQLConf = SQLConf.get,
      hadoopConf: Configuration = new Configuration,
      useColumnFamilies: Boolean = false): RedisStateStoreProvider = {
    val provider = new LikeRocksDBProvider
    hadoopConf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    provider.init(
      id,
      keySchema,
      valueSchema,
      spec.getOrElse(NoPrefixKeyStateEncoderSpec(keySchema)),
      useColumnFamilies,
      new StateStoreConf(sqlConf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    provider
  }
}

/**
 * Where the suite allows for differences it goes by the name of the store's class: any class not
 * named so is asked for the iterators of HDFSBackedStateStoreProvider, which show later updates.
 * Ours are those of RocksDB's provider.
 */
private class LikeRocksDBProvider extends TightProvider {
  override private[redisstate] def newStore(
      session: WriteSession,
      codecs: CodecSet,
      host: StoreHost): RedisStateStore =
    new LikeRocksDBStateStore(stateStoreId, session, codecs, host)

  /**
   * The suite asks again and again for versions of checkpoints without a marker: it need not wait
   * for one.
   */
  override private[redisstate] val clock: Clock = new Clock {
    private val sleptMs = new AtomicLong
    override def nowMs: Long = Clock.System.nowMs + sleptMs.get
    override def sleep(ms: Long): Unit = sleptMs.addAndGet(ms)
  }
}

private class LikeRocksDBStateStore(
    id: StateStoreId,
    session: WriteSession,
    codecs: CodecSet,
    host: StoreHost)
    extends RedisStateStore(id, session, codecs, host)
