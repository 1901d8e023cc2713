package org.redisstate.core.store

import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite
import redis.clients.jedis.Jedis
import redis.clients.jedis.params.ClientKillParams

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend._
import org.redisstate.core.errors.{ConfigException, NotDurableException}
import org.redisstate.core.ids.Keys
import org.redisstate.core.local.Slice

/** Conditions that a commit waits for, with real replicas and real files. */
class DurabilitySuite extends AnyFunSuite {
  import DurabilitySuite._
  import TestPartition._

  test("a replica that stands still is named, and the same version is committed when it goes on") {
    replicated { (master, replica) =>
      val gen = newGen()
      commitOne(patient(master, gen), 0)
      replica.pause()
      val failure = intercept[NotDurableException](commitOne(hasty(master, gen), 1))
      assert(failure.kind == "NOT_DURABLE" && failure.retryable)
      assert(failure.getMessage.contains("0 of 1 replicas have it"))
      assert(failure.getMessage.contains("durability=replicas:1"))
      replica.resume()
      val again = patient(master, gen)
      val meta = Keys.meta(again.id)
      commitOne(again, 1)
      Using.resource(new Jedis("127.0.0.1", replica.port))(r => assert(r.hget(meta, "l") == "2"))
    }
  }

  test("what is there already is waited for too") {
    replicated { (master, replica) =>
      val gen = newGen()
      commitOne(patient(master, gen), 0)
      replica.pause()
      val lossy = new LosesAnswer
      val partition = hasty(master, gen, lossy.between(_))
      val failure = intercept[NotDurableException](commitOne(partition, 1))
      assert(failure.getMessage.contains("0 of 1 replicas have it"))
      assert(lossy.outcomes.take(2) == Seq("OK", "ALREADY"))
      replica.resume()
    }
  }

  test("an acknowledged commit survives its server") {
    replicated { (master, replica) =>
      Using.resource(new RedisSentinelProcess("state", master.port)) { sentinel =>
        val partition = new TestPartition(
          master,
          url = Some(s"redis+sentinel://127.0.0.1:${sentinel.port}/state/0"),
          durability = Durability.of("replicas:1"),
          deadlineMs = 60000)
        sentinel.awaitReplica()
        val store = partition.store("a")
        (0 until 50).foreach(v => commitOn(store, v.toLong))
        master.close()
        assert(valueOf(partition.store("b"), 50) == "49")
        partition.close()
      }
      assert(replica.port > 0)
    }
  }

  test("a master that was cut off is left") {
    replicated { (master, _) =>
      Using.Manager { use =>
        val follow = Seq("--replicaof", "127.0.0.1", master.port.toString)
        val second = use(new RedisServerProcess(follow: _*))
        val sentinel = use(new RedisSentinelProcess("state", master.port))
        sentinel.awaitReplicas(2)
        val partition = new TestPartition(
          master,
          url = Some(s"redis+sentinel://127.0.0.1:${sentinel.port}/state/0"),
          durability = Durability.of("replicas:1"),
          deadlineMs = 60000)
        val store = partition.store("a")
        commitOn(store, 0)
        val session = store.open(1).write()
        put(session, key(0, "x"), "1")
        cutOff(master)
        session.commit()
        val newest = Using.resource(new Jedis("127.0.0.1", second.port))(raw =>
          raw.hget(Keys.meta(partition.id), "l"))
        assert(newest == "2")
        assert(valueOf(partition.store("a"), 2) == "1")
        partition.close()
      }.get
    }
  }

  /** Closes a server to new connections, and disconnects its replicas and sentinels. */
  private def cutOff(server: RedisServerProcess): Unit =
    Using.resource(new Jedis("127.0.0.1", server.port)) { raw =>
      raw.configSet("bind", "127.0.0.2")
      raw.clientList().linesIterator
        .filter(line => line.contains(" name=sentinel") || line.contains(" flags=S"))
        .foreach(line => raw.clientKill(ClientKillParams.clientKillParams().id(idOf(line))))
    }

  private def idOf(line: String): String =
    line.split(' ').find(_.startsWith("id=")).get.stripPrefix("id=")

  test("a file that is not written at once is refused or waited for, as the server can tell") {
    val folder = java.nio.file.Files.createTempDirectory("rs-aof").toString
    val file = Seq("--dir", folder, "--appendonly", "yes", "--appendfsync", "always")
    Using.resource(new RedisServerProcess(file: _*)) { server =>
      val gen = newGen()
      val wanted = Durability.of("aof")
      commitOne(new TestPartition(server, gen = gen, durability = wanted, deadlineMs = 60000), 0)
      Using.resource(new Jedis("127.0.0.1", server.port)) { raw =>
        raw.configSet("appendfsync", "no")
        val hasty = new TestPartition(server, gen = gen, durability = wanted, deadlineMs = 1000)
        if (knowsWaitAof(raw)) {
          val failure = intercept[NotDurableException](commitOne(hasty, 1))
          assert(failure.getMessage.contains("not on the server's disk"))
        } else {
          val failure = intercept[ConfigException](commitOne(hasty, 1))
          assert(failure.getMessage.contains("older than 7.2, has appendfsync no"))
        }
      }
    }
  }

  test("an abort waits for nobody") {
    replicated { (master, _) =>
      val seen = new LosesAnswer(losing = 0)
      val partition = new TestPartition(
        master,
        durability = Durability.of("replicas:1"),
        deadlineMs = 60000,
        between = seen.between(_))
      val store = partition.store("a")
      commitOn(store, 0)
      store.client.abort("d:2:nobody")
      // The first commit is sent twice: the server did not know its scripts.
      assert(seen.waits == Seq(true, true, false))
      partition.close()
    }
  }

  private def replicated(body: (RedisServerProcess, RedisServerProcess) => Unit): Unit =
    Using.Manager { use =>
      val master = use(new RedisServerProcess("--repl-diskless-sync-delay", "0"))
      val replica = use(new RedisServerProcess("--replicaof", "127.0.0.1", master.port.toString))
      val raw = use(new Jedis("127.0.0.1", master.port))
      val followed = Iterator.continually(raw.info("replication").contains("state=online"))
      assert(followed.take(PollsMax).exists { there =>
        if (!there) Thread.sleep(PollMs)
        there
      })
      body(master, replica)
    }.get

  private def patient(master: RedisServerProcess, gen: String): TestPartition =
    new TestPartition(
      master,
      gen = gen,
      durability = Durability.of("replicas:1"),
      deadlineMs = 60000)

  private def hasty(
      master: RedisServerProcess,
      gen: String,
      between: Transport => Transport = identity): TestPartition =
    new TestPartition(
      master,
      gen = gen,
      durability = Durability.of("replicas:1"),
      deadlineMs = 1000,
      between = between)

  private def commitOne(partition: TestPartition, version: Long): Unit =
    try commitOn(partition.store("a"), version)
    finally partition.close()

  private def commitOn(store: PartitionVersions, version: Long): Unit = {
    val session = store.open(version).write()
    put(session, key(0, "x"), version.toString)
    session.commit()
    ()
  }

  private def valueOf(store: PartitionVersions, version: Long): String = {
    val value = new Slice
    val name = key(0, "x")
    assert(store.open(version).get(name, name.length, value))
    text(value)
  }

  private def knowsWaitAof(raw: Jedis): Boolean = {
    val Version = "(?s).*redis_version:(\\d+)\\.(\\d+).*".r
    raw.info("server") match {
      case Version(major, minor) =>
        Ordering[(Int, Int)].gteq((major.toInt, minor.toInt), Durability.WaitAofSince)
      case other => fail(other)
    }
  }
}

private object DurabilitySuite {
  private val PollsMax = 1200
  private val PollMs = 50L

  /** The answer to the first commit is lost; what follows goes over another connection. */
  final class LosesAnswer(losing: Int = 1) {
    var outcomes: Seq[String] = Nil

    /** True for each transaction that a wait followed. */
    var waits: Seq[Boolean] = Nil

    def between(inner: Transport): Transport = new Transport {
      override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
        val replies = inner.exchange(commands)
        if (commands.head.name == "MULTI") {
          outcomes :+= outcome(replies)
          waits :+= commands.last.name.startsWith("WAIT")
          if (outcomes.size == losing) throw new TransportException("lost", null)
        }
        replies
      }
      override def close(): Unit = inner.close()
    }

    private def outcome(replies: Seq[AnyRef]): String =
      replies.collectFirst { case results: Seq[_] => results.last }.collect {
        case Seq(word: Array[Byte], _*) => new String(word)
      }.getOrElse("")
  }
}
