package org.apache.spark.sql.redisstate.rows

import java.util.UUID

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.{ProviderHarness, RedisStateStoreProvider}

import org.redisstate.core.RedisServerProcess

/** Stores hand encoders on, and no two of them use the same one at once. */
class EncoderPoolSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  private val sorted = "sorted"

  override def afterAll(): Unit = server.close()

  private def layout(name: String): FamilyLayout = FamilyLayout(
    1,
    name,
    valueSchema,
    RangeKeyScanStateEncoderSpec(keySchema, Seq(1)),
    multiValue = false,
    internal = false,
    RowEncoding.Plain)

  test("encoders are for one store at a time, and for families that are the same") {
    val pool = new EncoderPool(useColumnFamilies = true)
    val (first, second) = (pool.take(layout("a")), pool.take(layout("a")))
    assert(first ne second)
    pool.giveBack(layout("a"), first)
    assert(pool.take(layout("b")) ne first)
    assert(pool.take(FamilyLayout.of(layout("a").family)) eq first)
    assert(pool.take(layout("a")) ne first)
  }

  private def opened(made: RedisStateStoreProvider, version: Long): StateStore = {
    val store = made.getStore(version)
    store.createColFamilyIfAbsent(
      sorted,
      keySchema,
      valueSchema,
      RangeKeyScanStateEncoderSpec(keySchema, Seq(1)))
    store
  }

  private def shown(pair: UnsafeRowPair): (Int, Int) = (pair.key.getInt(1), pair.value.getInt(0))

  test("what is read of a store that has committed is not touched by the next store") {
    val made = new RedisStateStoreProvider
    initialize(made, newId(), UUID.randomUUID(), families = true)
    val first = opened(made, 0)
    (0 until 50).foreach(i => first.put(key("k", i), value(i), sorted))
    val begun = first.iterator(sorted)
    val held = begun.next()
    assert(shown(held) == (0, 0))
    first.commit()
    val second = opened(made, 1)
    (0 until 50).foreach { i =>
      second.put(key("k", i), value(1000 + i), sorted)
      if (i > 0) assert(shown(begun.next()) == (i, i))
      assert(second.get(key("k", i), sorted).getInt(0) == 1000 + i)
      assert(first.get(key("k", i), sorted).getInt(0) == i)
    }
    assert(!begun.hasNext)
    // Two attempts of one version, in turns.
    val (one, other) = (opened(made, 1), opened(made, 1))
    (0 until 50).foreach { i =>
      one.put(key("k", i), value(-i), sorted)
      other.put(key("k", i + 100), value(i), sorted)
    }
    assert(one.iterator(sorted).map(shown).toSeq == (0 until 50).map(i => (i, -i)))
    assert(other.iterator(sorted).map(shown).map(_._1).toSeq == (0 until 50) ++ (100 until 150))
    Seq(one, other, second).foreach(_.abort())
    made.close()
  }
}
