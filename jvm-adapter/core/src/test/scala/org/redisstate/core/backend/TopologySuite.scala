package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.Executors

import scala.util.{Failure, Try, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.errors.{ConfigException, UnavailableException}

/** The backend against real sentinels and clusters, while servers fail and slots move. */
final class TopologySuite extends AnyFunSuite {
  import TopologySuite._

  test("a pipeline over several slots comes back in order, from all nodes") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val backend = use(connect(clusterUrl(cluster)))
      val keys = (0 until 20).map(n => s"{$n}:k")
      assert(keys.map(k => cluster.ownerOf(cluster.slotOf(k))).toSet == Set(0, 1))
      backend.call("write", keys.map(k => Command("SET", k, s"of $k")))
      val read = backend.call("read", keys.map(k => Command("GET", k)))
      assert(read.map(text) == keys.map(k => s"of $k"))
    }.get
  }

  test("threads that lose a master at once get nothing but errors of the connection") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val keyOf = (0 to 1).map(owner =>
        (0 until 20).map(n => s"{$n}:k").find(k => cluster.ownerOf(cluster.slotOf(k)) == owner).get)
      val transport = use(new ClusterTransport(settings(clusterUrl(cluster))))
      transport.exchange(Seq(Command("GET", keyOf(0)), Command("GET", keyOf(1))))
      cluster.nodes(1).close()
      val pool = use(Executors.newFixedThreadPool(4))(_.shutdown())
      val work = (0 until 4).map { n =>
        pool.submit(() =>
          (0 until 500).map(_ => Try(transport.exchange(Seq(Command("GET", keyOf(n % 2)))))))
      }
      val failures = work.flatMap(_.get()).collect { case Failure(e) => e }
      assert(failures.map(_.getClass).toSet == Set(classOf[TransportException]))
    }.get
  }

  test("each master of a cluster is looked at before the first operation") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      var seen = 0
      val transport = Transports.to(settings(clusterUrl(cluster)))
      val backend =
        use(new RedisBackend(transport, 10000, Clock.System, () => false, _ => seen += 1))
      backend.call("read", Seq(Command("GET", "k")))
      backend.call("read", Seq(Command("GET", "k")))
      assert(seen == 2)
    }.get
  }

  test("a master that was replaced is looked at no more") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val transport = new ClusterTransport(settings(clusterUrl(cluster)))
      assert(transport.exchanges.size == 2)
      cluster.nodes(1).close()
      cluster.takeOver(gone = 1, by = 0)
      val looks: (Seq[Command] => Seq[AnyRef]) => Unit = ask => { ask(Seq(Command("INFO"))); () }
      val backend = use(new RedisBackend(transport, 10000, Clock.System, () => false, looks))
      val keys = (0 until 20).map(n => s"{$n}:k")
      assert(backend.call("read", keys.map(k => Command("GET", k))).forall(_ == null))
    }.get
  }

  test("a transaction and a script follow ASK, and MOVED when the slot has its new owner") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val backend = use(connect(clusterUrl(cluster), clock = NoWaiting))
      val (key, slot) = ("{a}:k", cluster.slotOf("{a}:k"))
      val from = cluster.ownerOf(slot)
      assert(exec(backend, key, "first") == Seq("OK", "first"))
      cluster.beginMigration(slot, from, 1 - from)
      cluster.moveKeys(from, 1 - from, Seq(key))
      assert(exec(backend, key, "asked") == Seq("OK", "asked"))
      assert(text(backend.call("read", Seq(Command("GET", key))).head) == "asked")
      cluster.endMigration(slot, 1 - from)
      assert(exec(backend, key, "moved") == Seq("OK", "moved"))
    }.get
  }

  test("TRYAGAIN is waited for until the slot has moved") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val (old, fresh) = ("{a}:old", "{a}:new")
      val slot = cluster.slotOf(old)
      val from = cluster.ownerOf(slot)
      var waits = 0
      val clock = new OnSleep({
        waits += 1
        if (waits == 3) cluster.endMigration(slot, 1 - from)
      })
      val backend = use(connect(clusterUrl(cluster), clock))
      backend.call("write", Seq(Command("SET", old, "1")))
      cluster.beginMigration(slot, from, 1 - from)
      cluster.moveKeys(from, 1 - from, Seq(old))
      backend.transaction("write both", Seq(Command("MSET", old, "2", fresh, "2")))
      assert(waits == 3)
      assert(text(backend.call("read", Seq(Command("GET", fresh))).head) == "2")
    }.get
  }

  test("a slot left half-migrated past the deadline is named") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val slot = cluster.slotOf("{a}:old")
      val from = cluster.ownerOf(slot)
      val backend = use(connect(clusterUrl(cluster), new OnSleep(()), deadlineMs = 3000))
      backend.call("write", Seq(Command("SET", "{a}:old", "1")))
      cluster.beginMigration(slot, from, 1 - from)
      cluster.moveKeys(from, 1 - from, Seq("{a}:old"))
      val error = intercept[UnavailableException] {
        backend.call("write both", Seq(Command("MSET", "{a}:old", "2", "{a}:new", "2")))
      }
      assert(error.getMessage.contains("TRYAGAIN"))
      assert(error.getMessage.contains(s"slot $slot"))
      assert(error.getMessage.contains(s"127.0.0.1:${cluster.nodes(1 - from).port}"))
    }.get
  }

  test("a cluster URL of a lone server, and a redis URL with a database for a cluster") {
    Using.Manager { use =>
      val server = use(new RedisServerProcess)
      val lone = use(connect(s"redis+cluster://127.0.0.1:${server.port}"))
      val error = intercept[ConfigException](lone.call("read", Seq(Command("GET", "k"))))
      assert(error.getMessage.contains("not a node of a cluster"))
    }.get
  }

  test("a fail-over of Sentinel is followed within one call") {
    Using.Manager { use =>
      val master = use(new RedisServerProcess)
      val replica = use(new RedisServerProcess("--replicaof", "127.0.0.1", master.port.toString))
      val sentinel = use(new RedisSentinelProcess("state", master.port))
      val backend =
        use(connect(s"redis+sentinel://127.0.0.1:${sentinel.port}/state/1", deadlineMs = 60000))
      backend.call("write", Seq(Command("SET", "k", "before"), Command("WAIT", "1", "10000")))
      sentinel.awaitReplica()
      master.close()
      assert(exec(backend, "k", "after") == Seq("OK", "after"))
      Using.resource(new redis.clients.jedis.Jedis("127.0.0.1", replica.port)) { jedis =>
        jedis.select(1)
        assert(jedis.get("k") == "after")
      }
    }.get
  }

  test("a name that no sentinel knows") {
    Using.Manager { use =>
      val master = use(new RedisServerProcess)
      val sentinel = use(new RedisSentinelProcess("state", master.port))
      val backend = use(connect(s"redis+sentinel://127.0.0.1:${sentinel.port}/other"))
      val error = intercept[ConfigException](backend.call("read", Seq(Command("GET", "k"))))
      assert(error.getMessage.contains("no master named 'other'"))
    }.get
  }
}

private object TopologySuite {

  def settings(url: String): ConnectionSettings =
    TestConnection.settings(url, socketTimeoutMs = 2000, deadlineMs = 10000)

  def connect(url: String, clock: Clock = Clock.System, deadlineMs: Long = 10000): RedisBackend =
    new RedisBackend(Transports.to(settings(url)), deadlineMs, clock, () => false)

  /** All of it seems to take no time, so a wait would never end: for what must not wait. */
  object NoWaiting extends Clock {
    override def nowMs: Long = 0L
    override def sleep(ms: Long): Unit = throw new AssertionError("the backend waited")
  }

  /** Time passes only while somebody waits. */
  final class OnSleep(act: => Unit) extends Clock {
    private var now = 0L
    override def nowMs: Long = now
    override def sleep(ms: Long): Unit = {
      now += math.max(ms, 1L)
      act
    }
  }

  /** One node is enough to find the others. */
  def clusterUrl(cluster: RedisClusterProcesses): String =
    s"redis+cluster://127.0.0.1:${cluster.nodes.head.port}"

  def text(reply: AnyRef): String = reply match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case other => String.valueOf(other)
  }

  def exec(backend: RedisBackend, key: String, value: String): Seq[String] =
    backend.transaction("write", Seq(Command("SET", key, value), Command("GET", key))).map(text)
}
