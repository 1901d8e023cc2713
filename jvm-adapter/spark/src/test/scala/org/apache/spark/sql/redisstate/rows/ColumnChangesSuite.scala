package org.apache.spark.sql.redisstate.rows

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.{ProviderHarness, RedisStateStoreProvider}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.types.StructType

import org.redisstate.core.RedisServerProcess

/** Columns that are not those of the state: what is said of them, before a row is written. */
class ColumnChangesSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)

  override def afterAll(): Unit = server.close()

  private def columns(ddl: String): StructType = StructType.fromDDL(ddl)

  private def changes(before: String, now: String): Option[String] = {
    val key = columns("k STRING")
    ColumnChanges.of(Columns(key, columns(before)), Columns(key, columns(now)))
  }

  test("the same columns, whether they may be null or not, have not changed") {
    assert(changes("a INT, b STRING", "a INT NOT NULL, b STRING").isEmpty)
  }

  test("columns are named with their types") {
    assert(changes("a INT, b STRING", "a INT, c ARRAY<INT>").contains(
      "the value column 'b' (string) was removed; the value column 'c' (array<int>) was added"))
    assert(changes("a INT", "a STRUCT<x: INT>").contains(
      "the value column 'a' was int and is struct<x:int>"))
    assert(changes("a INT, b INT", "b INT, a INT").contains(
      "the value columns were in the order (a, b) and are (b, a)"))
  }

  test("columns of one name are told apart by their number") {
    val sums = new StructType().add("sum", "long").add("sum", "long")
    val key = columns("k STRING")
    val found = ColumnChanges.of(Columns(key, sums), Columns(key, sums.add("sum", "double")))
    assert(found.contains("the value column 'sum' (double) was added"))
  }

  test("very many changes are cut off") {
    val many = (1 to 20).map(i => s"c$i INT").mkString(", ")
    val found = changes("a INT", many).get
    assert(found.endsWith("'c7' (int) was added; and 13 more"))
  }

  private def provider(
      id: StateStoreId,
      value: StructType,
      families: Boolean = false,
      prefixed: Option[StructType] = None): RedisStateStoreProvider = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", server.url)
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    val made = new RedisStateStoreProvider
    val plain = NoPrefixKeyStateEncoderSpec(harness.keySchema)
    made.init(
      id,
      prefixed.getOrElse(harness.keySchema),
      value,
      prefixed.fold[KeyStateEncoderSpec](plain)(PrefixKeyScanStateEncoderSpec(_, 1)),
      families,
      new StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    made
  }

  private def row(schema: StructType, values: Any*): UnsafeRow =
    UnsafeProjection.create(schema)(new GenericInternalRow(values.toArray)).copy()

  private def refused(what: => Any): String = intercept[Exception](what).getMessage

  private val told = "[REDIS_FORMAT] the columns of the query are not those of the state: " +
    "the value column 'w' (bigint) was added. "

  test("rows that do not fit are found when the state is opened, and nothing is written") {
    val id = harness.newId()
    val first = provider(id, harness.valueSchema)
    harness.commit(first, 0, (0 until 500).map(i => s"k$i" -> i): _*)
    first.close()
    val more = harness.valueSchema.add("w", "long")
    val second = provider(id, more)
    assert(refused(second.getStore(1)).contains(told))
    assert(refused(second.getReadStore(1, None).iterator().size).contains(told))
    second.close()
    val again = provider(id, harness.valueSchema)
    assert(harness.read(again, 1).size == 500)
    again.close()
  }

  test("the next version describes columns that all rows have") {
    val id = harness.newId()
    val first = provider(id, harness.valueSchema)
    harness.commit(first, 0)
    first.close()
    val more = harness.valueSchema.add("w", "long")
    val second = provider(id, more)
    val store = second.getStore(1)
    store.put(harness.key("a"), row(more, 1, 2L))
    store.commit()
    second.close()
    val back = provider(id, harness.valueSchema.add("x", "string").add("y", "string"))
    val said = refused(back.getStore(2))
    assert(said.contains("the value column 'w' (bigint) was removed"))
    back.close()
  }

  test("keys with a prefix, as those of session windows, are looked at too") {
    val id = harness.newId()
    val first = provider(id, harness.valueSchema, prefixed = Some(harness.keySchema))
    harness.commit(first, 0, "a" -> 1)
    first.close()
    val more = harness.keySchema.add("j", "long")
    val second = provider(id, harness.valueSchema, prefixed = Some(more))
    assert(refused(second.getStore(1)).contains("the key column 'j' (bigint) was added"))
    second.close()
  }

  for (lists <- Seq(false, true)) test(s"values of a family are looked at too, lists: $lists") {
    val id = harness.newId()
    def declare(store: StateStore, value: StructType): Unit =
      store.createColFamilyIfAbsent(
        "f",
        harness.keySchema,
        value,
        NoPrefixKeyStateEncoderSpec(harness.keySchema),
        useMultipleValuesPerKey = lists)
    val first = provider(id, harness.valueSchema, families = true)
    val store = first.getStore(0)
    declare(store, harness.valueSchema)
    if (lists) store.putList(harness.key("a"), Array(harness.value(1), harness.value(2)), "f")
    else store.put(harness.key("a"), harness.value(1), "f")
    store.commit()
    first.close()
    val second = provider(id, harness.valueSchema, families = true)
    val next = second.getStore(1)
    val said = refused(declare(next, harness.valueSchema.add("w", "long")))
    assert(said.contains(told + "Rows of the column family 'f' do not fit. Nothing was changed."))
    next.abort()
    second.close()
  }
}
