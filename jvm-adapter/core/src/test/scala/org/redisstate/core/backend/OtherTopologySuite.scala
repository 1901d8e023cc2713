package org.redisstate.core.backend

import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.ConfigException

/** The URL names another topology than the server has: the error says which form of URL to give. */
final class OtherTopologySuite extends AnyFunSuite {
  import OtherTopologySuite._
  import TopologySuite._

  test("one node of a cluster as the server") {
    Using.resource(new RedisClusterProcesses(masters = 2)) { cluster =>
      val other = cluster.nodes(1 - cluster.ownerOf(cluster.slotOf(Key)))
      val e = Using.resource(connect(other.url)) { backend =>
        intercept[ConfigException](backend.transaction("commit", Seq(Command("SET", Key, "1"))))
      }
      assert(e.getMessage.contains("redis+cluster://"))
      val database = failure(other.url.stripSuffix("/0") + "/1")
      assert(database.contains("no database 1"))
    }
  }

  test("a slot that moves away from one node as the server") {
    Using.resource(new RedisClusterProcesses(masters = 2)) { cluster =>
      val slot = cluster.slotOf(Key)
      val source = cluster.ownerOf(slot)
      cluster.beginMigration(slot, source, 1 - source)
      assert(failure(cluster.nodes(source).url).contains("redis+cluster://"))
    }
  }

  test("a sentinel as the server") {
    Using.Manager { use =>
      val master = use(new RedisServerProcess)
      val sentinel = use(new RedisSentinelProcess("state", master.port))
      val url = s"redis://127.0.0.1:${sentinel.port}/0"
      assert(failure(url).contains("Sentinel"))
      val found = Using.resource(checked(url)) { backend =>
        intercept[ConfigException](backend.call("read", Seq(Command("GET", Key)))).getMessage
      }
      assert(found.contains(s"$url is a Sentinel"))
      assert(found.contains("redis+sentinel://"))
    }.get
  }

  test("a server as the sentinel, alone and beside one") {
    Using.Manager { use =>
      val server = use(new RedisServerProcess)
      val sentinel = use(new RedisSentinelProcess("state", server.port))
      assert(failure(s"redis+sentinel://127.0.0.1:${server.port}/state").contains("not a Sentinel"))
      val both = s"redis+sentinel://127.0.0.1:${server.port},127.0.0.1:${sentinel.port}/state"
      assert(use(connect(both)).call("read", Seq(Command("GET", Key))) == Seq(null))
    }.get
  }

  test("a node that lacks the command of clusters") {
    Using.resource(new RedisServerProcess("--rename-command", "CLUSTER", "OTHER")) { server =>
      val found = failure(s"redis+cluster://127.0.0.1:${server.port}")
      assert(found.contains("lacks the command CLUSTER:"))
    }
  }

  test("a master of sentinels that lacks ROLE is used") {
    Using.Manager { use =>
      val master = use(new RedisServerProcess("--rename-command", "ROLE", "OTHER"))
      val sentinel = use(new RedisSentinelProcess("state", master.port))
      val backend = use(connect(s"redis+sentinel://127.0.0.1:${sentinel.port}/state"))
      assert(backend.call("read", Seq(Command("GET", Key))) == Seq(null))
    }.get
  }

  private def failure(url: String): String = Using.resource(connect(url)) { backend =>
    intercept[ConfigException](backend.call("read", Seq(Command("GET", Key)))).getMessage
  }

  private def checked(url: String): RedisBackend = {
    val check = ServerChecks.check(url, Durability.None, asksLimits = true, _)
    new RedisBackend(Transports.to(settings(url)), 10000, Clock.System, () => false, check)
  }
}

private object OtherTopologySuite {
  private val Key = "{x}:m"
}
