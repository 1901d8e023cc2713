package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID
import java.util.concurrent.{Callable, Executors, TimeUnit}

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.ExecutorRegistry

import org.redisstate.core.RedisServerProcess

/** Life cycle of stores: opened, upgraded, forced to write snapshots, maintained and closed. */
class StoreLifeCycleSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  override def afterAll(): Unit = server.close()

  private def loadEmpty(made: RedisStateStoreProvider, version: Long): StateStore =
    made.getStore(version, None, forceSnapshotOnCommit = false, loadEmpty = true)

  private def forced(made: RedisStateStoreProvider, version: Long): StateStore =
    made.getStore(version, None, forceSnapshotOnCommit = true, loadEmpty = false)

  private def lastSnapshot(store: StateStore): Seq[(String, Long)] =
    store.metrics.instanceMetrics.map { case (metric, value) => metric.name -> value }.toSeq

  test("a store that is loaded empty replaces everything") {
    val id = newId()
    val made = provider(id)
    commit(made, 0, "a" -> 1, "b" -> 2)
    commit(made, 1, "c" -> 3)
    val store = loadEmpty(made, 2)
    assert(rows(store).isEmpty && store.get(key("a")) == null && store.version == 2)
    put(store, "d" -> 4)
    assert(store.commit() == 3)
    assert(store.metrics.numKeys == 1)
    assert(read(made, 3) == Map("d" -> 4))
    assert(read(provider(id), 3) == Map("d" -> 4))
    assert(read(provider(id), 2) == Map("a" -> 1, "b" -> 2, "c" -> 3))
    assert(commit(made, 3, "e" -> 5) == 4)
    assert(read(provider(id), 4) == Map("d" -> 4, "e" -> 5))
  }

  test("a store is loaded empty at a version that its partition never had") {
    val id = newId()
    val run = UUID.randomUUID()
    val made = provider(id, run)
    val first = loadEmpty(made, 7)
    put(first, "lost" -> 1)
    first.abort()
    for (attempt <- 1 to 2) {
      val store = loadEmpty(provider(id, run), 7)
      put(store, "a" -> attempt)
      assert(store.commit() == 8)
    }
    assert(read(made, 8) == Map("a" -> 2))
    assert(intercept[Exception](read(provider(id), 7)).getMessage.contains("[REDIS_STATE_LOST]"))
    assert(commit(made, 8, "b" -> 3) == 9)
    assert(read(provider(id), 9) == Map("a" -> 2, "b" -> 3))
    made.doMaintenance()
    assert(read(provider(id), 9) == Map("a" -> 2, "b" -> 3))
  }

  test("a store that is loaded empty may stay so") {
    val id = newId()
    val made = provider(id)
    commit(made, 0, "a" -> 1)
    val store = loadEmpty(made, 1)
    assert(store.commit() == 2)
    assert(read(provider(id), 2).isEmpty)
    assert(loadEmpty(provider(newId()), 0).commit() == 1)
  }

  test("a newer run begins a leftover partition empty above what it has") {
    val id = newId()
    val earlier = provider(id)
    commit(earlier, 0, "old" -> 1)
    val store = loadEmpty(provider(id), 5)
    put(store, "new" -> 2)
    assert(store.commit() == 6)
    assert(read(provider(id), 6) == Map("new" -> 2))
    assert(intercept[Exception](commit(earlier, 1, "a" -> 1)).getMessage.contains("REDIS_"))
  }

  test("a forced snapshot is there when the commit returns") {
    val id = newId()
    val made = provider(id)
    val first = made.getStore(0)
    put(first, "a" -> 1)
    first.commit()
    assert(lastSnapshot(first) == Seq("SnapshotLastUploaded.partition_0_default" -> -1L))
    val store = forced(made, 1)
    put(store, "b" -> 2)
    assert(store.commit() == 2)
    assert(lastSnapshot(store) == Seq("SnapshotLastUploaded.partition_0_default" -> 2L))
    val custom = store.metrics.customMetrics.map { case (m, v) => m.name -> v }
    assert(custom("forceSnapshotCount") == 1 && custom("redisStateSnapshots") == 1)
    assert(read(provider(id), 2) == Map("a" -> 1, "b" -> 2))
    // An attempt that replaces the one with the snapshot counts, with its own snapshot or without.
    assert(commit(made, 1, "b" -> 3) == 2)
    assert(read(provider(id), 2) == Map("a" -> 1, "b" -> 3))
    val again = forced(made, 1)
    put(again, "b" -> 4)
    again.commit()
    assert(commit(made, 2, "c" -> 5) == 3)
    assert(read(provider(id), 3) == Map("a" -> 1, "b" -> 4, "c" -> 5))
  }

  test("metrics that Spark can show are named before there is a store") {
    val made = provider(newId())
    assert(made.supportedInstanceMetrics.map(_.metricPrefix) == Seq("SnapshotLastUploaded"))
    val store = made.getStore(0)
    put(store, "a" -> 1)
    store.commit()
    val named = made.supportedCustomMetrics.map(_.name).toSet
    assert(store.metrics.customMetrics.keySet.map(_.name) == named)
  }

  test("a read store is upgraded to a write store of what it read") {
    val id = newId()
    val run = UUID.randomUUID()
    val made = provider(id, run)
    commit(made, 0, "a" -> 1)
    val store = made.upgradeReadStoreToWriteStore(made.getReadStore(1, None), 1)
    assert(rows(store) == Map("a" -> 1))
    put(store, "b" -> 2)
    assert(store.commit() == 2)
    // Spark may have put another provider in the place of the one that read.
    val elsewhere = provider(id, run).getReadStore(2, None)
    made.close()
    val other = provider(id, run).upgradeReadStoreToWriteStore(elsewhere, 2)
    put(other, "c" -> 3)
    assert(other.commit() == 3)
    assert(read(provider(id, run), 3) == Map("a" -> 1, "b" -> 2, "c" -> 3))
  }

  test("no store to write is given to a task that has failed already") {
    val made = provider(newId())
    commit(made, 0, "a" -> 1)
    val task = TaskContext.empty()
    TaskContext.setTaskContext(task)
    try {
      task.markTaskFailed(new IllegalStateException("its other thread failed"))
      val refused = intercept[IllegalStateException](made.getStore(1))
      assert(refused.getMessage == "its other thread failed")
    } finally TaskContext.unset()
    assert(commit(made, 1, "b" -> 2) == 2)
  }

  test("a read store of another version or store is not upgraded") {
    val made = provider(newId())
    commit(made, 0, "a" -> 1)
    val store = made.getReadStore(1, None)
    intercept[IllegalArgumentException](made.upgradeReadStoreToWriteStore(store, 2))
    val other = provider(newId())
    commit(other, 0, "a" -> 1)
    intercept[IllegalArgumentException](other.upgradeReadStoreToWriteStore(store, 1))
  }

  test("a read store whose version was replaced is not upgraded") {
    val id = newId()
    val run = UUID.randomUUID()
    val (one, two) = (provider(id, run), provider(id, run))
    commit(one, 0, "a" -> 1)
    val store = provider(id).getReadStore(1, None)
    commit(two, 0, "a" -> 2)
    two.getStore(1).abort()
    assert(rows(store) == Map("a" -> 1))
    intercept[Exception](one.upgradeReadStoreToWriteStore(store, 1))
    assert(commit(two, 1, "b" -> 3) == 2)
    assert(read(two, 2) == Map("a" -> 2, "b" -> 3))
  }

  test("maintenance of every kind may run at once, and while the provider is closed") {
    val id = newId()
    val made = provider(id)
    (0 until 8).foreach(v => commit(made, v.toLong, s"k$v" -> v))
    made.getStore(8).abort()
    val threads = Executors.newFixedThreadPool(4)
    val work = Seq.fill(8)(new Callable[Unit] { def call(): Unit = made.doMaintenance() })
    val closing = new Callable[Unit] { def call(): Unit = made.close() }
    try threads.invokeAll(java.util.List.of((work :+ closing): _*)).forEach(_.get(
        60,
        TimeUnit.SECONDS))
    finally threads.shutdown()
    assert(read(provider(id), 8) == (0 until 8).map(v => s"k$v" -> v).toMap)
  }

  test("maintenance without a server is put off, and the provider stays") {
    val other = new RedisServerProcess
    val at = new ProviderHarness(other.url)
    val made =
      at.provider(at.newId(), options = Map(RedisStateConf.Prefix + "deadline" -> "1s"))
    try at.commit(made, 0, "a" -> 1)
    finally other.close()
    made.doMaintenance()
    made.close()
  }

  test("a silent server holds one maintenance, and not one for each of its stores") {
    val other = new RedisServerProcess
    try {
      val at = new ProviderHarness(other.url)
      val options = Map("deadline" -> "1s", "socketTimeout" -> "500ms").map {
        case (name, value) => RedisStateConf.Prefix + name -> value
      }
      val silent = Seq.fill(8)(at.provider(at.newId(), options = options))
      silent.foreach(at.commit(_, 0, "a" -> 1))
      other.pause()
      val beganNs = System.nanoTime()
      silent.foreach(_.doMaintenance())
      assert((System.nanoTime() - beganNs) / 1000000 < 4000)
      other.resume()
      silent.foreach(made => assert(at.read(made, 1) == Map("a" -> 1)))
      silent.foreach(_.close())
    } finally other.close()
  }

  test("a checkpoint folder that cannot be written ends the task, and nothing is in Redis") {
    val file = Files.createTempFile("not-a", "folder")
    val made = provider(StateStoreId(file.toString + "/state", 0L, 0))
    val store = made.getStore(0)
    intercept[Exception](put(store, "a" -> 1))
    store.abort()
    assert(!store.hasCommitted)
    Files.delete(file)
    assert(intercept[Exception](made.getStore(1)).getMessage.contains("REDIS_"))
  }

  test("a provider that was closed while a task opened a version does not connect again") {
    val conf = RedisStateConf(Map(RedisStateConf.Prefix + "url" -> server.url), 100).connection
    val id = newId()
    val made = provider(id)
    commit(made, 0, "a" -> 1)
    val read = made.getReadStore(1, None)
    val others = ExecutorRegistry.users(conf) - 1
    made.close()
    val late = intercept[Exception](
      made.upgradeReadStoreToWriteStore(read, 1, None, forceSnapshotOnCommit = false))
    assert(late.getMessage.contains("its provider was unloaded meanwhile"))
    intercept[Exception](made.getStore(1))
    assert(ExecutorRegistry.users(conf) == others)
    made.close()
    assert(ExecutorRegistry.users(conf) == others)
    val next = provider(id)
    assert(commit(next, 1, "b" -> 2) == 2)
    next.close()
  }
}
