package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.RedisServerProcess

/**
 * Spark's writer of state, which offline repartition uses, on this provider: what it writes is the
 * whole of the version.
 */
class StateWriterSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)

  override def afterAll(): Unit = server.close()

  private def confs(): (StateStoreConf, Configuration) = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", server.url)
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[RedisStateStoreProvider].getName)
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    (new StateStoreConf(conf), hadoopConf)
  }

  private def write(checkpoint: String, batch: Long, families: Seq[(String, Boolean)])(
      rows: (String, UnsafeRow, UnsafeRow)*): Unit = {
    val (storeConf, hadoopConf) = confs()
    val infos = families.map { case (name, lists) =>
      val spec = NoPrefixKeyStateEncoderSpec(harness.keySchema)
      val schema =
        StateStoreColFamilySchema(name, 0, harness.keySchema, 0, harness.valueSchema, Some(spec))
      name -> StatePartitionWriterColumnFamilyInfo(schema, lists)
    }
    val writer = new StatePartitionAllColumnFamiliesWriter(
      storeConf,
      hadoopConf,
      0,
      checkpoint,
      0L,
      StateStoreId.DEFAULT_STORE_NAME,
      batch,
      infos.toMap,
      None)
    writer.write(rows.iterator.map { case (family, key, value) =>
      new GenericInternalRow(
        Array[Any](null, key.getBytes, value.getBytes, UTF8String.fromString(family))): InternalRow
    })
    ()
  }

  private def open(checkpoint: String, version: Long, families: Boolean): ReadStateStore =
    harness
      .provider(StateStoreId(s"$checkpoint/state", 0L, 0), families = families)
      .getReadStore(version, None)

  test("a version that was written whole holds nothing of the versions before") {
    val checkpoint = Files.createTempDirectory("rewritten").toString
    val default = Seq(StateStore.DEFAULT_COL_FAMILY_NAME -> false)
    def row(k: String, v: Int) =
      (StateStore.DEFAULT_COL_FAMILY_NAME, harness.key(k), harness.value(v))
    write(checkpoint, 0, default)(row("a", 1), row("b", 2))
    write(checkpoint, 1, default)(row("b", 3), row("c", 4))
    assert(harness.rows(open(checkpoint, 1, families = false)) == Map("a" -> 1, "b" -> 2))
    assert(harness.rows(open(checkpoint, 2, families = false)) == Map("b" -> 3, "c" -> 4))
  }

  test("families and their lists are written") {
    val checkpoint = Files.createTempDirectory("rewritten").toString
    write(checkpoint, 4, Seq("one" -> false, "list" -> true))(
      ("one", harness.key("a"), harness.value(1)),
      ("list", harness.key("a"), harness.value(2)),
      ("list", harness.key("a"), harness.value(3)),
      ("list", harness.key("b"), harness.value(4))
    )
    val store = open(checkpoint, 5, families = true)
    assert(store.get(harness.key("a"), "one").getInt(0) == 1)
    def list(k: String) = store.valuesIterator(harness.key(k), "list").map(_.getInt(0)).toList
    assert(list("a") == List(2, 3))
    assert(list("b") == List(4))
  }

  test("the change feed of a version that was written whole is what it changed") {
    val checkpoint = Files.createTempDirectory("rewritten").toString
    val default = Seq(StateStore.DEFAULT_COL_FAMILY_NAME -> false)
    def row(k: String, v: Int) =
      (StateStore.DEFAULT_COL_FAMILY_NAME, harness.key(k), harness.value(v))
    write(checkpoint, 0, default)(row("a", 1), row("b", 2), row("c", 3))
    write(checkpoint, 1, default)(row("b", 2), row("c", 4), row("d", 5))
    val provider = harness.provider(StateStoreId(s"$checkpoint/state", 0L, 0))
    val feed = provider.getStateStoreChangeDataReader(2, 2, None, None)
    val found = feed.map { case (kind, key, value, batch) =>
      (kind, key.getUTF8String(0).toString, Option(value).map(_.getInt(0)), batch)
    }.toSet
    assert(
      found == Set(
        (RecordType.PUT_RECORD, "c", Some(4), 1L),
        (RecordType.PUT_RECORD, "d", Some(5), 1L),
        (RecordType.DELETE_RECORD, "a", None, 1L)))
  }
}
