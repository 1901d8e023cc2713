package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** Providers with keys (string, int) and values (int), of any query run and executor. */
private[redisstate] final class ProviderHarness(url: String) {
  val keySchema: StructType =
    StructType(Seq(StructField("k", StringType), StructField("i", IntegerType)))
  val valueSchema: StructType = StructType(Seq(StructField("v", IntegerType)))
  private val toKey = UnsafeProjection.create(keySchema)
  private val toValue = UnsafeProjection.create(valueSchema)

  def key(k: String, i: Int = 0): UnsafeRow =
    toKey(new GenericInternalRow(Array[Any](UTF8String.fromString(k), i))).copy()

  def value(v: Int): UnsafeRow = toValue(new GenericInternalRow(Array[Any](v))).copy()

  def newId(): StateStoreId =
    StateStoreId(Files.createTempDirectory("providers").toString, 0L, 0)

  def provider(
      id: StateStoreId,
      run: UUID = UUID.randomUUID(),
      families: Boolean = false,
      options: Map[String, String] = Map.empty): RedisStateStoreProvider = {
    val made = new RedisStateStoreProvider
    initialize(made, id, run, families, options)
    made
  }

  def initialize(
      made: StateStoreProvider,
      id: StateStoreId,
      run: UUID,
      families: Boolean,
      options: Map[String, String] = Map.empty,
      hadoop: Map[String, String] = Map.empty): Unit = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", url)
    options.foreach { case (name, text) => conf.setConfString(name, text) }
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, run.toString)
    hadoop.foreach { case (name, text) => hadoopConf.set(name, text) }
    made.init(
      id,
      keySchema,
      valueSchema,
      NoPrefixKeyStateEncoderSpec(keySchema),
      families,
      new StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
  }

  def put(store: StateStore, rows: (String, Int)*): Unit =
    rows.foreach { case (k, v) => store.put(key(k), value(v)) }

  def commit(made: StateStoreProvider, version: Long, rows: (String, Int)*): Long = {
    val store = made.getStore(version)
    put(store, rows: _*)
    store.commit()
  }

  def rows(store: ReadStateStore): Map[String, Int] =
    store.iterator().map(p => p.key.getUTF8String(0).toString -> p.value.getInt(0)).toMap

  def read(made: StateStoreProvider, version: Long): Map[String, Int] =
    rows(made.getReadStore(version, None))
}
