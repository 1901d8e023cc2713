package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite
import redis.clients.jedis.{Connection, HostAndPort}

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.Entry
import org.redisstate.core.ids.{Keys, PartitionId}

/**
 * What docs/decisions/0001-jvm-redis-client.md claims of the Jedis classes that the adapter uses, on
 * real servers: ASK in front of a transaction, a master found by Sentinel, every element of EXEC.
 */
final class JedisProofSuite extends AnyFunSuite {
  private val id = PartitionId("", "0" * 32, 0, 0, "default")
  private val meta = Keys.meta(id)
  private val run = "run-1"

  test("a commit follows a half-migrated slot when ASKING goes in front of MULTI") {
    Using.resource(new RedisClusterProcesses(masters = 2)) { cluster =>
      val slot = cluster.slotOf(meta)
      val from = cluster.ownerOf(slot)
      val to = 1 - from
      val delta = Keys.segment(id, "d:1:first")
      Using.Manager { use =>
        val source = use(connect(cluster.nodes(from)))
        val target = use(connect(cluster.nodes(to)))
        assert(words(send(source, acquire())) == Seq(Seq("OK", "0")))
        assert(words(send(source, stage("first"))) == Seq(Seq("OK")))
        cluster.beginMigration(slot, from, to)
        cluster.moveKeys(from, to, Seq(meta, delta))

        val refused = send(source, Multi +: commit("first") :+ Exec)
        assert(refused.head == "OK")
        val error = errorOf(refused(1))
        assert(error.startsWith(s"ASK $slot 127.0.0.1:${cluster.nodes(to).port}"))
        assert(ReplyClass.of(error) == ReplyClass.Transient)
        assert(errorOf(refused.last).startsWith("EXECABORT"))

        val unasked = send(target, Multi +: commit("first") :+ Exec)
        assert(unasked.head == "OK")
        assert(
          errorOf(unasked(1)).startsWith(s"MOVED $slot 127.0.0.1:${cluster.nodes(from).port}"))
        assert(errorOf(unasked.last).startsWith("EXECABORT"))

        val asked = send(target, Asking +: Multi +: commit("first") :+ Exec)
        assert(asked == Seq[Any]("OK", "OK", "QUEUED", "QUEUED", Seq(Seq("OK"), Seq("OK"))))
        // ASKING holds for one transaction, not for the connection.
        assert(errorOf(send(target, Seq(Command("HLEN", meta))).head).startsWith("MOVED"))
      }.get
    }
  }

  test("a commit whose delta is new waits with TRYAGAIN until the slot has moved") {
    Using.resource(new RedisClusterProcesses(masters = 2)) { cluster =>
      val slot = cluster.slotOf(meta)
      val from = cluster.ownerOf(slot)
      val to = 1 - from
      Using.Manager { use =>
        val source = use(connect(cluster.nodes(from)))
        val target = use(connect(cluster.nodes(to)))
        assert(words(send(source, acquire())) == Seq(Seq("OK", "0")))
        cluster.beginMigration(slot, from, to)
        cluster.moveKeys(from, to, Seq(meta))

        val waiting = send(target, Asking +: Multi +: commit("new") :+ Exec)
        assert(errorOf(waiting(2)).startsWith("TRYAGAIN"))
        assert(ReplyClass.of(errorOf(waiting(2))) == ReplyClass.Transient)
        assert(errorOf(waiting.last).startsWith("EXECABORT"))

        cluster.endMigration(slot, to)
        val moved = send(source, Seq(Command("HLEN", meta)))
        assert(errorOf(moved.head).startsWith(s"MOVED $slot"))
        val done = send(target, Multi +: commit("new") :+ Exec)
        assert(done.last == Seq(Seq("OK"), Seq("OK")))
      }.get
    }
  }

  test("a master that Sentinel names takes the transaction") {
    Using.Manager { use =>
      val server = use(new RedisServerProcess)
      val sentinel = use(new RedisSentinelProcess("state", server.port))
      val question = Command("SENTINEL", "get-master-addr-by-name", "state")
      val address = send(use(connect(sentinel.port)), Seq(question)).head
      assert(address == Seq("127.0.0.1", server.port.toString))

      val unknown = Command("SENTINEL", "get-master-addr-by-name", "other")
      assert(send(use(connect(sentinel.port)), Seq(unknown)) == Seq(null))

      val master = use(connect(server.port))
      assert(words(send(master, acquire())) == Seq(Seq("OK", "0")))
      val role = send(master, Seq(Command("ROLE"))).head
      assert(role.asInstanceOf[Seq[AnyRef]].head == "master")
      val replies = send(master, Multi +: commit("first") :+ Exec)
      assert(replies.last == Seq(Seq("OK"), Seq("OK")))
    }.get
  }

  test("EXEC shows each element: a refusal, an error and a result beside each other") {
    Using.Manager { use =>
      val master = use(connect(use(new RedisServerProcess).port))
      assert(words(send(master, acquire())) == Seq(Seq("OK", "0")))
      val mixed = Seq(
        Command("SET", "text", "x"),
        Command("HLEN", "text"),
        publish("absent"),
        Command("STRLEN", "text"))
      send(master, Multi +: mixed :+ Exec).last match {
        case Seq(set, ErrorReply(wrong), refused, length) =>
          assert(set == "OK")
          assert(wrong.startsWith("WRONGTYPE"))
          assert(refused == Seq("INCOMPLETE", "0"))
          assert(length == Long.box(1))
        case other => fail(s"EXEC answered $other")
      }
      assert(send(master, Seq(Command("HEXISTS", meta, "d:1:absent"))) == Seq(Long.box(0)))
    }.get
  }

  private val Multi = Command("MULTI")
  private val Exec = Command("EXEC")
  private val Asking = Command("ASKING")

  private def connect(server: RedisServerProcess): Connection = connect(server.port)

  private def connect(port: Int): Connection = {
    val connection = new Connection(new HostAndPort("127.0.0.1", port))
    connection.connect()
    connection
  }

  /**
   * Sends all commands in one flush, then reads all replies, as `JedisTransport`. Decodes bytes as
   * text.
   */
  private def send(connection: Connection, commands: Seq[Command]): Seq[AnyRef] = {
    commands.foreach(c => connection.sendCommand(JedisTransport.protocol(c.name), c.args: _*))
    connection.getMany(commands.size).asScala.iterator.map(JedisTransport.reply).map(texts).toVector
  }

  private def send(connection: Connection, command: Command): Seq[AnyRef] =
    send(connection, Seq(command))

  private def texts(reply: AnyRef): AnyRef = reply match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case items: Seq[_] => items.map(item => texts(item.asInstanceOf[AnyRef]))
    case other => other
  }

  private def words(replies: Seq[AnyRef]): Seq[Seq[AnyRef]] =
    replies.map { case items: Seq[_] => items.map(_.asInstanceOf[AnyRef]); case x => fail(s"$x") }

  private def errorOf(reply: AnyRef): String = reply match {
    case ErrorReply(message) => message
    case other => fail(s"not an error: $other")
  }

  private def acquire(): Command =
    Script.Acquire.byText(
      Seq(meta),
      Seq(run, "1", "1", "0", "-", "100", "1000", "1", "0").map(Command.bytes))

  private def commit(uid: String): Seq[Command] =
    Seq(stage(uid), publish(uid))

  private def stage(uid: String): Command = {
    val args = Seq(s"d:1:$uid", "60000", "0", "a block")
    Script.Stage.byText(Seq(meta, Keys.segment(id, s"d:1:$uid")), args.map(Command.bytes))
  }

  private def publish(uid: String): Command = {
    val entry = Entry("-", 1, 1, 1, 7, 1, 0, complete = false, header = false)
    val args = Seq(run, "1", "0", "-", uid, "1", entry.text, "1000", "1", "0")
    Script.Publish.byText(Seq(meta, Keys.segment(id, s"d:1:$uid")), args.map(Command.bytes))
  }
}
