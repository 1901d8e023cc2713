package org.apache.spark.sql.redisstate.rows

import java.util.UUID

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.{ProviderHarness, RedisStateStoreProvider}
import org.apache.spark.sql.redisstate.stores.{RedisStateStore, StoreHost}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.Family
import org.redisstate.core.store.WriteSession

/**
 * The columns of keys are those of the encoder's spec: in what is written, in what a version says
 * of itself, and where an earlier version did neither.
 */
class KeyColumnsSuite extends AnyFunSuite with BeforeAndAfterAll {
  import KeyColumnsSuite._

  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness.{initialize, newId, value, valueSchema}

  override def afterAll(): Unit = server.close()

  private def made(
      id: StateStoreId,
      provider: RedisStateStoreProvider = new RedisStateStoreProvider): RedisStateStoreProvider = {
    initialize(provider, id, UUID.randomUUID(), families = true)
    provider
  }

  private def declare(store: StateStore, keys: Keys, specs: Seq[KeyStateEncoderSpec]): Unit =
    specs.zipWithIndex.foreach { case (spec, i) =>
      store.createColFamilyIfAbsent(s"f$i", keys.joinKeys, valueSchema, spec)
    }

  private def fill(store: StateStore, keys: Keys, specs: Seq[KeyStateEncoderSpec]): Unit =
    for (i <- specs.indices; n <- 0 until 20) store.put(keys.row(n), value(n), s"f$i")

  private def found(store: ReadStateStore, family: Int): Map[Seq[Byte], Int] =
    store.iterator(s"f$family").map(p => p.key.getBytes.toSeq -> p.value.getInt(0)).toMap

  private def expected(
      keys: Keys,
      row: (Keys, Int) => UnsafeRow = _.row(_)): Map[Seq[Byte], Int] =
    (0 until 20).map(n => row(keys, n).getBytes.toSeq -> n).toMap

  for (keys <- Shapes) {
    val shape = keys.joinKeys.simpleString

    test(s"a version describes the columns of the spec: $shape") {
      val id = newId()
      val writer = made(id)
      val store = writer.getStore(0)
      declare(store, keys, keys.specs)
      fill(store, keys, keys.specs)
      store.commit()
      writer.close()
      val reader = made(id)
      val undeclared = reader.getReadStore(1, None)
      keys.specs.indices.foreach(i => assert(found(undeclared, i) == expected(keys)))
      reader.close()
    }

    test(s"a description without the event time is mended, where the keys have it: $shape") {
      val id = newId()
      val old = made(id, new DescribingProvider(withoutTime(_, keys)))
      val first = old.getStore(0)
      declare(first, keys, keys.timed)
      fill(first, keys, keys.timed)
      first.commit()
      old.close()
      val upgraded = made(id)
      val undeclared = upgraded.getReadStore(1, None)
      val refused = intercept[Exception](found(undeclared, 0))
      assert(refused.getMessage.contains("is described without the event time"))
      val store = upgraded.getStore(1)
      declare(store, keys, keys.timed)
      keys.timed.indices.foreach(i => assert(found(store, i) == expected(keys)))
      assert(store.get(keys.row(3), "f0").getInt(0) == 3)
      store.remove(keys.row(19), "f1")
      store.commit()
      upgraded.close()
      val next = made(id)
      val mended = next.getReadStore(2, None)
      assert(found(mended, 0) == expected(keys))
      assert(found(mended, 1) == expected(keys) - keys.row(19).getBytes.toSeq)
      next.close()
    }

    for (described <- Seq(true, false)) {
      val words = if (described) "whole" else "without the event time"
      test(s"Spark's state reader gets the event time once more: $shape, described $words") {
        val id = newId()
        val writer = made(
          id,
          if (described) new RedisStateStoreProvider
          else new DescribingProvider(withoutTime(_, keys)))
        val written = writer.getStore(0)
        declare(written, keys, keys.timed)
        fill(written, keys, keys.timed)
        written.commit()
        writer.close()
        val reader = made(id)
        val store = reader.getStore(1)
        // Twice: each side of the reader declares its families.
        for (_ <- 0 until 2) declare(store, keys, keys.ofReader)
        keys.ofReader.indices.foreach(i => assert(found(store, i) == expected(keys, _.again(_))))
        val refused = intercept[Exception](store.put(keys.again(1), value(1), "f0"))
        assert(refused.getMessage.startsWith(
          "[REDIS_FORMAT] the columns of the query are not those of the state"))
        assert(refused.getMessage.contains(s"'field${keys.joinKeys.length}' (bigint) was added"))
        store.commit()
        reader.close()
        val next = made(id)
        val after = next.getStore(2)
        declare(after, keys, keys.timed)
        keys.timed.indices.foreach(i => assert(found(after, i) == expected(keys)))
        after.abort()
        next.close()
      }
    }

    test(s"keys that were written without their event time are refused: $shape") {
      val id = newId()
      val old = made(id)
      val store = old.getStore(0)
      val mistaken = Seq(
        TimestampAsPostfixKeyStateEncoderSpec(keys.joinKeys),
        TimestampAsPrefixKeyStateEncoderSpec(keys.joinKeys))
      declare(store, keys, mistaken)
      // The encoder took the last join key for the timestamp, and left the timestamp out.
      for (i <- mistaken.indices; n <- 0 until 20) store.put(keys.row(n), value(n), s"f$i")
      store.commit()
      old.close()
      val upgraded = made(id)
      (keys.timed.zipWithIndex ++ keys.ofReader.zipWithIndex).foreach { case (spec, i) =>
        val next = upgraded.getStore(1)
        val refused = intercept[Exception](
          next.createColFamilyIfAbsent(s"f$i", keys.joinKeys, valueSchema, spec))
        assert(refused.getMessage.contains("has keys without columns that the query needs"))
        next.abort()
      }
      upgraded.close()
    }
  }

  test("a column that cannot be ordered is refused as RocksDB's provider does") {
    val schema = new StructType().add("i", IntegerType).add("s", StringType).add("n", NullType)
    for (at <- Seq(1, 2)) {
      val spec = RangeKeyScanStateEncoderSpec(schema, Seq(0, at))
      val refused =
        Seq(new RedisStateStoreProvider, new RocksDBStateStoreProvider).map { provider =>
          initialize(provider, newId(), UUID.randomUUID(), families = true)
          val store = provider.getStore(0)
          try intercept[Exception](store.createColFamilyIfAbsent("f", schema, valueSchema, spec))
          finally {
            store.abort()
            provider.close()
          }
        }
      assert(refused.head.getClass == refused.last.getClass)
      assert(refused.head.getMessage == refused.last.getMessage)
    }
  }
}

private object KeyColumnsSuite {

  /** As families were described once. */
  def withoutTime(family: Family, keys: Keys): Family =
    family.copy(keySchema = keys.joinKeys.json)

  /** Join keys of a shape, and rows of them with an event time. */
  final class Keys(types: DataType*) {
    val joinKeys: StructType =
      StructType(types.zipWithIndex.map { case (t, i) => StructField(s"field$i", t) })
    private val timedKeys = joinKeys.add("__event_time", LongType, nullable = false)
    private val toRow = UnsafeProjection.create(timedKeys)

    val timed: Seq[KeyStateEncoderSpec] = Seq(
      TimestampAsPostfixKeyStateEncoderSpec(timedKeys),
      TimestampAsPrefixKeyStateEncoderSpec(timedKeys))
    val specs: Seq[KeyStateEncoderSpec] = timed ++ Seq(
      NoPrefixKeyStateEncoderSpec(timedKeys),
      PrefixKeyScanStateEncoderSpec(timedKeys, 1),
      RangeKeyScanStateEncoderSpec(timedKeys, Seq(types.size)))

    /** Key columns that Spark's state reader requests: the event time counts as a join key. */
    private val repeated = joinKeys
      .add(s"field${types.size}", LongType, nullable = false)
      .add("__event_time", LongType, nullable = false)
    private val toRepeated = UnsafeProjection.create(repeated)

    val ofReader: Seq[KeyStateEncoderSpec] = Seq(
      TimestampAsPostfixKeyStateEncoderSpec(repeated),
      TimestampAsPrefixKeyStateEncoderSpec(repeated))

    def row(n: Int): UnsafeRow =
      toRow(new GenericInternalRow((types.map(one(_, n)) :+ (1000L + n)).toArray)).copy()

    def again(n: Int): UnsafeRow = {
      val columns = types.map(one(_, n)) ++ Seq(1000L + n, 1000L + n)
      toRepeated(new GenericInternalRow(columns.toArray)).copy()
    }

    private def one(dataType: DataType, n: Int): Any = dataType match {
      case IntegerType => n
      case LongType => n.toLong
      case StringType => UTF8String.fromString("s" * (n % 17))
      case s: StructType => new GenericInternalRow(s.map(f => one(f.dataType, n)).toArray)
      case other => throw new IllegalArgumentException(s"no values of $other")
    }
  }

  private val Window = new StructType().add("start", LongType).add("end", LongType)

  val Shapes: Seq[Keys] = Seq(
    new Keys(IntegerType),
    new Keys(StringType),
    new Keys(LongType, LongType),
    new Keys(StringType, StringType),
    new Keys(Window, IntegerType))
}

/** Writes versions whose families are described otherwise. */
private final class DescribingProvider(describe: Family => Family) extends RedisStateStoreProvider {
  override private[redisstate] def newStore(
      session: WriteSession,
      codecs: CodecSet,
      host: StoreHost): RedisStateStore =
    new RedisStateStore(stateStoreId, session, codecs, host) {
      override def commit(): Long = {
        session.allFamilies.filter(_.id != 0).foreach(f => session.defineFamily(describe(f)))
        super.commit()
      }
    }
}
