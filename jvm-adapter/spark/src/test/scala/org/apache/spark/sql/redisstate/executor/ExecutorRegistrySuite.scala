package org.apache.spark.sql.redisstate.executor

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.ProviderHarness
import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Clock, Command, RedisBackend, Transports}

/**
 * Providers of a process that are shown as serving a partition. Covers how long ephemeral state is
 * kept for them.
 */
class ExecutorRegistrySuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  private lazy val settings =
    RedisStateConf(Map(RedisStateConf.Prefix + "url" -> server.url), 100).connection
  private lazy val raw =
    new RedisBackend(Transports.to(settings), settings.deadlineMs, Clock.System, () => false)

  override def afterAll(): Unit = {
    raw.close()
    server.close()
  }

  private def ask(name: String, args: String*): AnyRef =
    raw.call("look", Seq(Command(name, args: _*))).head

  private def keys(run: UUID): Seq[String] =
    ask("KEYS", s"*${run.toString.replace("-", "")}*").asInstanceOf[Seq[Array[Byte]]]
      .map(new String(_, UTF_8))

  /** Key that shows the only partition of a checkpoint, in the first run of the checkpoint. */
  private def place(run: UUID): Option[String] = keys(run).find(_.contains(":i:"))

  private def shown(run: UUID): Option[String] = place(run).map(key =>
    new String(ask("GET", key).asInstanceOf[Array[Byte]], UTF_8))

  /** Deletes the entry; returns the value that the next heartbeat writes. */
  private def shownAgain(run: UUID): Option[String] = {
    place(run).foreach(ask("DEL", _))
    ExecutorRegistry.beat(settings)
    shown(run)
  }

  private def untilShown(run: UUID): Option[String] =
    Iterator.continually(shown(run)).take(600).find { found =>
      if (found.isEmpty) Clock.System.sleep(50)
      found.nonEmpty
    }.flatten

  test("a partition is shown from its first write on, without waiting for a heartbeat") {
    val run = UUID.randomUUID()
    val made = provider(newId(), run)
    val store = made.getStore(0)
    ExecutorRegistry.beat(settings)
    assert(shown(run).isEmpty)
    put(store, "a" -> 1)
    assert(untilShown(run).exists(_.contains(run.toString)))
    store.commit()
    made.close()
    assert(shownAgain(run).isEmpty)
  }

  test("a reader of the same process is not shown, and takes nothing away when it closes") {
    val id = newId()
    val run = UUID.randomUUID()
    val query = provider(id, run)
    commit(query, 0, "a" -> 1)
    val reader = provider(id)
    assert(read(reader, 1) == Map("a" -> 1))
    assert(shownAgain(run).exists(_.contains(run.toString)))
    reader.close()
    assert(shownAgain(run).exists(_.contains(run.toString)))
    query.close()
  }

  test("a provider that is closed late leaves the one that came after it") {
    val id = newId()
    val run = UUID.randomUUID()
    val (unloaded, next) = (provider(id, run), provider(id, run))
    commit(unloaded, 0, "a" -> 1)
    commit(next, 1, "b" -> 2)
    unloaded.close()
    assert(shownAgain(run).exists(_.contains(run.toString)))
    next.close()
    assert(shownAgain(run).isEmpty)
  }

  test("an ephemeral checkpoint is kept while its query lives, whoever else reads it") {
    val id = newId()
    val run = UUID.randomUUID()
    val options = Map(RedisStateConf.Prefix + "ephemeral" -> "true")
    val query = provider(id, run, options = options)
    commit(query, 0, "a" -> 1)
    val reader = provider(id, options = options)
    read(reader, 1)
    reader.close()
    val kept = keys(run).filterNot(_.contains(":i:"))
    assert(kept.size >= 3)
    kept.foreach(ask("PEXPIRE", _, "600000"))
    ExecutorRegistry.beat(settings)
    kept.foreach { key =>
      assert(ask("PTTL", key).asInstanceOf[java.lang.Long] > 600000L, key)
    }
    query.close()
  }

  test("what an ephemeral run left open does not let the state of a later run expire") {
    val id = newId()
    val run = UUID.randomUUID()
    val left = provider(id, run, options = Map(RedisStateConf.Prefix + "ephemeral" -> "true"))
    commit(left, 0, "a" -> 1)
    val kept = provider(id, UUID.randomUUID())
    commit(kept, 1, "b" -> 2)
    ExecutorRegistry.beat(settings)
    keys(run).filter(_.endsWith(":m")).foreach { key =>
      assert(ask("PTTL", key).asInstanceOf[java.lang.Long] == -1L, key)
    }
    left.close()
    kept.close()
  }

  test("the heartbeat shows what the store of an instance has counted") {
    val run = UUID.randomUUID()
    val made = provider(newId(), run)
    commit(made, 0, "a" -> 1, "b" -> 2)
    commit(made, 1, "b" -> 3)
    ExecutorRegistry.beat(settings)
    val key = keys(run).find(_.endsWith(":t")).get
    val text = new String(ask("HGET", key, "0:0:default").asInstanceOf[Array[Byte]], UTF_8)
    Seq("\"opens\":2", "\"loads\":1", "\"commits\":2", "\"rowsWritten\":3", run.toString)
      .foreach(part => assert(text.contains(part), part))
    assert(ask("PTTL", key).asInstanceOf[java.lang.Long] > 0L)
    made.close()
  }

  test("an instance that another executor followed is not shown until it commits again") {
    val run = UUID.randomUUID()
    val made = provider(newId(), run)
    commit(made, 0, "a" -> 1)
    ExecutorRegistry.beat(settings)
    val key = place(run).get
    ask("SET", key, "another executor")
    ExecutorRegistry.beat(settings)
    ExecutorRegistry.beat(settings)
    assert(shown(run).contains("another executor"))
    commit(made, 1, "b" -> 2)
    ExecutorRegistry.beat(settings)
    assert(shown(run).exists(_.contains(run.toString)))
    made.close()
  }

  test("a store that cannot be opened uses no connection") {
    val before = ExecutorRegistry.users(settings)
    val options = Map(RedisStateConf.Prefix + "signingKeyFile" -> "/nowhere/key")
    val made = provider(newId(), options = options)
    intercept[Exception](made.getStore(0))
    assert(ExecutorRegistry.users(settings) == before)
    made.close()
    assert(ExecutorRegistry.users(settings) == before)
  }
}
