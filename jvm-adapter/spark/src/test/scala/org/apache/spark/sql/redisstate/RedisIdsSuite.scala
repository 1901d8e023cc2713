package org.apache.spark.sql.redisstate

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.MarkerFile

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.protocol.RunRegistry

/** Checkpoint format 2 as a provider serves it: versions by unique id, and what stores report of them. */
class RedisIdsSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness.{key, newId, put, rows, value}

  override def afterAll(): Unit = server.close()

  private def provider(
      id: StateStoreId,
      run: UUID = UUID.randomUUID(),
      format: Int = 2): RedisStateStoreProvider =
    harness.provider(
      id,
      run,
      options = Map(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key -> format.toString))

  private def commit(store: StateStore, puts: (String, Int)*): StateStoreCheckpointInfo = {
    put(store, puts: _*)
    store.commit()
    store.getStateStoreCheckpointInfo()
  }

  /** As the driver does before the tasks of a run start. */
  private def register(id: StateStoreId, run: UUID): Unit = {
    val backend = TestConnection.backend(server.url)
    val marker = new MarkerFile(id.checkpointRootLocation, new Configuration).read().get
    try new RunRegistry(backend, "", marker.gen).register(run.toString, true, 0, Map.empty)
    finally backend.close()
    ()
  }

  test("each attempt is read by its id, from the executor that wrote it and from a new one") {
    val id = newId()
    val run = UUID.randomUUID()
    val made = provider(id, run)
    val one = commit(made.getStore(0), "a" -> 1, "x" -> 1)
    val two = commit(made.getStore(0), "a" -> 2)
    assert(Seq(one, two).forall(i => i.partitionId == 0 && i.batchVersion == 1))
    assert(Seq(one, two).forall(_.baseStateStoreCkptId.isEmpty))
    assert(one.stateStoreCkptId != two.stateStoreCkptId)
    for (any <- Seq(made, provider(id))) {
      assert(rows(any.getReadStore(1, one.stateStoreCkptId)) == Map("a" -> 1, "x" -> 1))
    }
    assert(rows(provider(id).getReadStore(1, two.stateStoreCkptId)) == Map("a" -> 2))
    val next = commit(made.getStore(1, one.stateStoreCkptId), "b" -> 3)
    assert(next.batchVersion == 2 && next.baseStateStoreCkptId == one.stateStoreCkptId)
    assert(rows(made.getReadStore(2, next.stateStoreCkptId)) ==
      Map("a" -> 1, "b" -> 3, "x" -> 1))
  }

  test("the attempts of a batch cannot go on from two different ones") {
    val made = provider(newId())
    val one = commit(made.getStore(0), "a" -> 1)
    val two = commit(made.getStore(0), "a" -> 2)
    made.getStore(1, two.stateStoreCkptId).abort()
    val e = intercept[Exception](made.getStore(1, one.stateStoreCkptId))
    assert(e.getMessage.contains("[REDIS_FENCED]"))
  }

  test("a store that is read before it is written goes on from what was read") {
    val id = newId()
    val made = provider(id)
    val one = commit(made.getStore(0), "a" -> 1)
    val two = commit(made.getStore(0), "a" -> 2)
    val read = made.getReadStore(1, one.stateStoreCkptId)
    val write = made.upgradeReadStoreToWriteStore(read, 1, one.stateStoreCkptId, false)
    assert(commit(write, "b" -> 1).baseStateStoreCkptId == one.stateStoreCkptId)
    assert(two.stateStoreCkptId != one.stateStoreCkptId)
  }

  test("an id that is not there is an error of Spark's with our kind") {
    val made = provider(newId())
    commit(made.getStore(0), "a" -> 1)
    val e = intercept[Exception](made.getStore(1, Some(UUID.randomUUID().toString)))
    assert(e.getMessage.contains("[REDIS_STATE_LOST]"))
  }

  test("there is no id before the commit, nor in format 1") {
    val made = provider(newId())
    val store = made.getStore(0)
    intercept[StateStoreOperationOutOfOrder](store.getStateStoreCheckpointInfo())
    store.abort()
    val plain = provider(newId(), format = 1)
    val info = commit(plain.getStore(0), "a" -> 1)
    assert(info == StateStoreCheckpointInfo(0, 1, None, None))
  }

  test("two stores that commit one after the other report their own ids") {
    val made = provider(newId())
    val one = made.getStore(0)
    one.commit()
    val two = made.getStore(1, one.getStateStoreCheckpointInfo().stateStoreCkptId)
    two.commit()
    assert(one.getStateStoreCheckpointInfo().batchVersion == 1)
    assert(two.getStateStoreCheckpointInfo().batchVersion == 2)
    assert(two.getStateStoreCheckpointInfo().baseStateStoreCkptId ==
      one.getStateStoreCheckpointInfo().stateStoreCkptId)
  }

  test("a store that is loaded empty stands on no id") {
    val id = newId()
    val made = provider(id)
    val first = commit(made.getStore(0), "a" -> 1)
    val alone = made.getStore(1, None, forceSnapshotOnCommit = false, loadEmpty = true)
    val info = commit(alone, "b" -> 2)
    assert(info.batchVersion == 2 && info.baseStateStoreCkptId.isEmpty)
    assert(rows(made.getReadStore(2, info.stateStoreCkptId)) == Map("b" -> 2))
    assert(rows(provider(id).getReadStore(1, first.stateStoreCkptId)) == Map("a" -> 1))
  }

  test("a query goes over to format 2, and not back") {
    val id = newId()
    commit(provider(id, format = 1).getStore(0), "a" -> 1)
    val later = UUID.randomUUID()
    register(id, later)
    val byIds = provider(id, later)
    val first = commit(byIds.getStore(1), "b" -> 2)
    assert(first.baseStateStoreCkptId.isDefined)
    val second = commit(byIds.getStore(2, first.stateStoreCkptId), "c" -> 3)
    // Spark's state reader has ids from the commit log whatever its session says.
    val reader = provider(id, format = 1)
    assert(rows(reader.getReadStore(3, second.stateStoreCkptId)) ==
      Map("a" -> 1, "b" -> 2, "c" -> 3))
    assert(rows(reader.getReadStore(1, None)) == Map("a" -> 1))
    val back = UUID.randomUUID()
    register(id, back)
    val store = provider(id, back, format = 1).getStore(3, second.stateStoreCkptId)
    val e = intercept[Exception](store.put(key("d"), value(4)))
    assert(e.getMessage.contains("[REDIS_CONFIG]"))
    assert(e.getMessage.contains("checkpointFormatVersion to 2"))
  }

  for (byDriver <- Seq(true, false))
    test(s"a restart goes on from the attempt that Spark logged: registered $byDriver") {
      goOnFromLogged(byDriver)
    }

  private def goOnFromLogged(byDriver: Boolean): Unit = {
    val id = newId()
    val made = provider(id)
    val logged = commit(made.getStore(0), "a" -> 1)
    commit(made.getStore(0), "a" -> 2)
    val run = UUID.randomUUID()
    if (byDriver) register(id, run)
    val again = provider(id, run)
    assert(commit(again.getStore(1, logged.stateStoreCkptId), "b" -> 1).batchVersion == 2)
    // Without an id it is now what the query went on with.
    assert(rows(provider(id).getReadStore(1, None)) == Map("a" -> 1))
  }
}
