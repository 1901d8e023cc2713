package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.util.Comparator

import scala.jdk.CollectionConverters._
import scala.util.Using

import redis.clients.jedis.Jedis
import redis.clients.jedis.commands.ProtocolCommand
import redis.clients.jedis.util.JedisClusterCRC16

import org.redisstate.core.RedisServerProcess

/** Masters of one cluster on loopback, with all slots shared out evenly; always stopped. */
private[core] final class RedisClusterProcesses(masters: Int) extends AutoCloseable {
  import RedisClusterProcesses._

  private val folder = Files.createTempDirectory("rs-cluster")
  val nodes: Seq[RedisServerProcess] = (0 until masters).map { n =>
    val dir = Files.createDirectory(folder.resolve(n.toString))
    new RedisServerProcess(
      "--cluster-enabled",
      "yes",
      "--cluster-node-timeout",
      NodeTimeoutMs.toString,
      "--cluster-require-full-coverage",
      "no",
      "--databases",
      "1",
      "--dir",
      dir.toString
    )
  }
  private val ids = nodes.map(node => ask(node, "MYID"))
  join()

  def slotOf(key: String): Int = JedisClusterCRC16.getSlot(key)

  /** Index of the node to which a slot was given at the start. */
  def ownerOf(slot: Int): Int = slot * masters / Slots

  /** Opens the migration of a slot; keys stay where they are until `moveKeys`. */
  def beginMigration(slot: Int, from: Int, to: Int): Unit = {
    ask(nodes(to), "SETSLOT", slot.toString, "IMPORTING", ids(from))
    ask(nodes(from), "SETSLOT", slot.toString, "MIGRATING", ids(to))
    ()
  }

  def moveKeys(from: Int, to: Int, keys: Seq[String]): Unit =
    Using.resource(new Jedis("127.0.0.1", nodes(from).port)) { jedis =>
      val args = Seq("127.0.0.1", nodes(to).port.toString, "", "0", "5000", "KEYS") ++ keys
      jedis.sendCommand(named("MIGRATE"), args: _*)
      ()
    }

  /** Some of the keys that a node holds of a slot. */
  def keysOf(slot: Int, node: Int): Seq[String] =
    Using.resource(new Jedis("127.0.0.1", nodes(node).port)) { jedis =>
      jedis.clusterGetKeysInSlot(slot, KeysMax).asScala.toSeq
    }

  /** Number of errors of this name that all nodes together have replied with. */
  def errors(name: String): Int = nodes.map { node =>
    Using.resource(new Jedis("127.0.0.1", node.port)) { jedis =>
      s"errorstat_$name:count=(\\d+)".r
        .findFirstMatchIn(jedis.info("errorstats"))
        .fold(0)(_.group(1).toInt)
    }
  }.sum

  def endMigration(slot: Int, to: Int): Unit = {
    ask(nodes(to), "SETSLOT", slot.toString, "NODE", ids(to))
    nodes.indices.filter(_ != to).foreach { n =>
      ask(nodes(n), "SETSLOT", slot.toString, "NODE", ids(to))
    }
    // A node that has not heard of the newest epoch could give the next slot back.
    await(
      nodes.map(
        ask(_, "INFO").linesIterator.filter(_.contains("current_epoch")).toSeq).toSet.size == 1,
      "the nodes of the cluster do not agree on an epoch")
  }

  /** All slots of a node that is gone become another's, as after an election. */
  def takeOver(gone: Int, by: Int): Unit = {
    val slots = (0 until Slots).filter(ownerOf(_) == gone).map(_.toString)
    ask(nodes(by), "DELSLOTS" +: slots: _*)
    ask(nodes(by), "ADDSLOTS" +: slots: _*)
    ()
  }

  override def close(): Unit = {
    nodes.foreach(_.close())
    Using.resource(Files.walk(folder)) { paths =>
      paths.sorted(Comparator.reverseOrder[Path]).forEach(path => {
        Files.deleteIfExists(path); ()
      })
    }
  }

  private def join(): Unit = {
    nodes.indices.foreach { n =>
      ask(nodes(n), "SET-CONFIG-EPOCH", (n + 1).toString)
      ask(nodes(n), "ADDSLOTS" +: (0 until Slots).filter(ownerOf(_) == n).map(_.toString): _*)
    }
    nodes.tail.foreach(node => ask(nodes.head, "MEET", "127.0.0.1", node.port.toString))
    await(
      nodes.forall { node =>
        val info = ask(node, "INFO")
        info.contains("cluster_state:ok") && info.contains(s"cluster_known_nodes:$masters") &&
        info.contains(s"cluster_size:$masters")
      },
      "the nodes of the cluster did not find each other"
    )
  }

  private def await(condition: => Boolean, otherwise: String): Unit = {
    val reached = Iterator.continually(condition).take(PollsMax).exists { ready =>
      if (!ready) Thread.sleep(PollMs)
      ready
    }
    if (!reached) {
      close()
      throw new IllegalStateException(otherwise)
    }
  }

  private def ask(node: RedisServerProcess, args: String*): String =
    Using.resource(new Jedis("127.0.0.1", node.port)) { jedis =>
      new String(jedis.sendCommand(named("CLUSTER"), args: _*).asInstanceOf[Array[Byte]], UTF_8)
    }
}

private[core] object RedisClusterProcesses {
  val Slots = 16384
  val NodeTimeoutMs = 2000
  val PollsMax = 600
  val PollMs = 50L
  val KeysMax = 2

  def named(name: String): ProtocolCommand = () => name.getBytes(UTF_8)
}
