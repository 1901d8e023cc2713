package org.apache.spark.sql.redisstate

import java.util.UUID

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.stores.RedisStateStore

import org.redisstate.core.RedisServerProcess

/** Keys are counted as Spark's RocksDB provider counts them, through restarts. */
class KeyCountSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  override def afterAll(): Unit = server.close()

  private def create(store: StateStore, name: String, lists: Boolean, internal: Boolean): Unit =
    store.createColFamilyIfAbsent(
      name,
      keySchema,
      valueSchema,
      NoPrefixKeyStateEncoderSpec(keySchema),
      lists,
      internal)

  private def metric(metrics: StateStoreMetrics, name: String): Long =
    metrics.customMetrics.collectFirst { case (m, v) if m.name == name => v }.get

  private def counts(store: StateStore): (Long, Long) = {
    val internal = store match {
      case _: RedisStateStore => "redisStateInternalKeys"
      case _ => "rocksdbNumInternalColFamiliesKeys"
    }
    (store.metrics.numKeys, metric(store.metrics, internal))
  }

  private val batches: Seq[StateStore => Unit] = Seq(
    s => {
      (0 until 20).foreach(i => s.put(key("s", i), value(i), "state"))
      (0 until 8).foreach(i => s.put(key("t", i), value(i), "$timers"))
      (0 until 3).foreach(i => s.merge(key("l", i % 2), value(i), "list"))
    },
    s => {
      (15 until 30).foreach(i => s.put(key("s", i), value(i), "state"))
      (0 until 5).foreach(i => s.remove(key("s", i), "state"))
      (0 until 3).foreach(i => s.remove(key("t", i), "$timers"))
      s.remove(key("t", 77), "$timers")
    },
    s => s.mergeList(key("l", 9), Array(value(1), value(2)), "list"),
    s => (3 until 8).foreach(i => s.remove(key("t", i), "$timers"))
  )

  test("keys of internal families are counted apart, as RocksDB's provider counts them") {
    val run = UUID.randomUUID()
    val (ourId, theirId) = (newId(), newId())
    batches.zipWithIndex.foreach { case (batch, version) =>
      val ours = new RedisStateStoreProvider
      val theirs = new RocksDBStateStoreProvider
      val found = Seq(ours -> ourId, theirs -> theirId).map { case (made, id) =>
        initialize(made, id, run, families = true)
        val store = made.getStore(version.toLong)
        create(store, "state", lists = false, internal = false)
        create(store, "$timers", lists = false, internal = true)
        create(store, "list", lists = true, internal = false)
        batch(store)
        store.commit()
        val counted = counts(store)
        made.close()
        counted
      }
      assert(found.distinct.size == 1, s"at version $version: $found")
    }
  }
}
