package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.move.engine.Providers
import org.apache.spark.sql.redisstate.rows.{
  EncoderPool,
  FamilyLayout,
  RowCodec,
  RowEncoding,
  StateRowValidator
}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice

/** Contract of Spark for a provider, on every supported minor. */
class ProviderContractSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val keySchema =
    StructType(Seq(StructField("k", StringType), StructField("i", IntegerType)))
  private val valueSchema = StructType(Seq(StructField("v", IntegerType)))
  private val toKey = UnsafeProjection.create(keySchema)
  private val toValue = UnsafeProjection.create(valueSchema)
  private lazy val server = new RedisServerProcess

  override def afterAll(): Unit = server.close()

  private def key(k: String, i: Int): UnsafeRow =
    toKey(new GenericInternalRow(Array[Any](UTF8String.fromString(k), i))).copy()

  private def value(v: Int): UnsafeRow = toValue(new GenericInternalRow(Array[Any](v))).copy()

  private def newId(): StateStoreId =
    StateStoreId(Files.createTempDirectory("contract").toString, 0L, 0)

  private def provider(id: StateStoreId, run: UUID = UUID.randomUUID()): RedisStateStoreProvider = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", server.url)
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, run.toString)
    val made = new RedisStateStoreProvider
    made.init(
      id,
      keySchema,
      valueSchema,
      NoPrefixKeyStateEncoderSpec(keySchema),
      useColumnFamilies = false,
      new StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    made
  }

  private def rows(store: ReadStateStore): Map[String, Int] =
    store.iterator().map(p => p.key.getUTF8String(0).toString -> p.value.getInt(0)).toMap

  private def commit(made: RedisStateStoreProvider, version: Long, puts: (String, Int)*): Long = {
    val store = made.getStore(version)
    puts.foreach { case (k, v) => store.put(key(k, 0), value(v)) }
    store.commit()
  }

  test("an iterator shows the store as it was when the iterator was made") {
    val made = provider(newId())
    val store = made.getStore(0)
    val first = store.iterator()
    store.put(key("a", 0), value(1))
    val second = store.iterator()
    store.put(key("a", 0), value(2))
    store.put(key("b", 0), value(3))
    def seen(i: Iterator[UnsafeRowPair]) =
      i.map(p => p.key.getUTF8String(0).toString -> p.value.getInt(0)).toMap
    assert(seen(first) == Map.empty)
    assert(seen(second) == Map("a" -> 1))
    assert(rows(store) == Map("a" -> 2, "b" -> 3))
    store.abort()
    made.close()
  }

  test("a version can be loaded and committed again, and the last commit wins") {
    val made = provider(newId())
    assert(commit(made, 0, "a" -> 1) == 1)
    assert(commit(made, 1, "b" -> 2) == 2)
    assert(commit(made, 1, "b" -> 3) == 2)
    assert(rows(made.getReadStore(2, None)) == Map("a" -> 1, "b" -> 3))
    made.close()
  }

  test("another executor of the same run reads what was committed") {
    val id = newId()
    val run = UUID.randomUUID()
    val one = provider(id, run)
    commit(one, 0, "a" -> 1, "b" -> 2)
    val other = provider(id, run)
    val store = other.getStore(1)
    store.remove(key("a", 0))
    store.remove(key("absent", 0))
    assert(store.commit() == 2)
    assert(store.metrics.numKeys == 1)
    assert(rows(one.getReadStore(2, None)) == Map("b" -> 2))
    one.close()
    other.close()
  }

  test("a run that reads an old version disturbs nothing") {
    val id = newId()
    val made = provider(id)
    commit(made, 0, "a" -> 1)
    commit(made, 1, "a" -> 2)
    val stranger = provider(id)
    assert(rows(stranger.getStore(1)) == Map("a" -> 1))
    assert(commit(made, 2, "a" -> 3) == 3)
    made.close()
    stranger.close()
  }

  test("an unregistered run cannot take the partition back") {
    val id = newId()
    val made = provider(id)
    commit(made, 0, "a" -> 1)
    commit(made, 1, "a" -> 2)
    made.getStore(2).abort()
    val zombie = provider(id)
    val store = zombie.getStore(1)
    val refused = intercept[Exception](store.put(key("a", 0), value(9)))
    assert(refused.getMessage.contains("[REDIS_FENCED]"))
    assert(commit(made, 2, "a" -> 3) == 3)
    made.close()
    zombie.close()
  }

  test("versions that are not there are named errors") {
    val made = provider(newId())
    commit(made, 0, "a" -> 1)
    assert(intercept[Exception](made.getStore(7)).getMessage.contains("[REDIS_STATE_LOST]"))
    assert(intercept[Exception](made.getStore(-1)).getMessage.contains("UNEXPECTED_VERSION"))
    made.close()
  }

  test("an update after commit or abort is refused") {
    val made = provider(newId())
    val store = made.getStore(0)
    store.put(key("a", 0), value(1))
    store.commit()
    intercept[StateStoreOperationOutOfOrder](store.put(key("a", 0), value(2)))
    intercept[Exception](store.commit())
    store.abort()
    assert(store.hasCommitted)
    made.close()
  }

  test("moves know the provider by the name of its class") {
    assert(Providers.Redis == classOf[RedisStateStoreProvider].getName)
  }

  test("keys and values are the bytes of Spark's RocksDB encoders") {
    val spec = NoPrefixKeyStateEncoderSpec(keySchema)
    val layout = FamilyLayout(
      0,
      "default",
      valueSchema,
      spec,
      multiValue = false,
      internal = false,
      RowEncoding.Plain)
    val ours = new RowCodec(layout, new EncoderPool(useColumnFamilies = false))
    val spark = new UnsafeRowDataEncoder(spec, valueSchema)
    val keyLength = ours.encodeKey(key("abc", 7))
    assert(ours.key.slice(2, keyLength).toSeq == spark.encodeKey(key("abc", 7)).toSeq)
    val valueLength = ours.encodeValue(value(5))
    assert(ours.value.take(valueLength).toSeq == spark.encodeValue(value(5)).toSeq)
    val slice = new Slice
    slice.set(ours.key, 0, keyLength)
    assert(ours.decodeKey(slice) == key("abc", 7))
  }

  test("rows that do not fit the schema are refused") {
    val validator =
      new StateRowValidator(keySchema, valueSchema, plainKeys = true, StateStoreConf.empty)
    val bytes =
      Array[Byte](0, 0, 0) ++ key("abc", 7).getBytes ++ Array[Byte](0) ++ value(5).getBytes
    val valueAt = 3 + key("abc", 7).getSizeInBytes
    val valueLength = bytes.length - valueAt
    assert(validator.check(bytes, 0, valueAt, valueAt, valueLength) == null)
    val broken = bytes.clone()
    broken(3 + 8 + 4) = 127
    assert(validator.check(broken, 0, valueAt, valueAt, valueLength) != null)
    assert(validator.check(bytes, 0, valueAt, valueAt, valueLength - 3) != null)
  }
}
