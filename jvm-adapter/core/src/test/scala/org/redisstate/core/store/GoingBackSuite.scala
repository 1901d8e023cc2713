package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._
import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite
import redis.clients.jedis.Jedis

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Script, Transport}
import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.Vectors

/** While a store writes, its server goes back to older data: once, in turns, or on and on. */
class GoingBackSuite extends AnyFunSuite {
  import GoingBackSuite._
  import TestPartition._

  for (losses <- Seq(
      Seq(Blocks),
      Seq(Opened),
      Seq(Blocks, Opened, Blocks, Opened),
      Seq(Opened, Blocks, Opened, Blocks)))
    partition(s"what the server lost is sent again: ${losses.mkString(", ")}") { (p, server) =>
      write(p.store(Run), 0)
      server.lose(Script.Publish, losses)
      write(p.store(Run), 1)
      assert(server.left == 0)
      check(p, 2)
    }

  for ((step, losses) <- Seq(
      Script.Publish -> Seq(Blocks),
      Script.Publish -> Seq(Opened),
      Script.Publish -> Seq(Blocks, Opened),
      Script.Publish -> Seq(Opened, Blocks),
      Script.Acquire -> Seq(Opened)
    )) {
    val during = if (step == Script.Publish) "a commit" else "acquiring"
    partition(s"a server that goes back on and on in $during is named: ${losses.mkString(", ")}") {
      (p, server) =>
        write(p.store(if (step == Script.Acquire) "earlier" else Run), 0)
        server.lose(step, Seq.fill(OnAndOn)(losses).flatten)
        val failure = intercept[UnavailableException](write(p.store(Run), 1))
        assert(losses.exists(loss => failure.getMessage.contains(Said(loss))))
        server.lose(step, Nil)
        check(p, 1)
        write(p.store(Run), 1)
        check(p, 2)
    }
  }

  private def partition(name: String)(body: (TestPartition, GoingBack) => Unit): Unit =
    test(name) {
      Using.Manager { use =>
        val server = use(new RedisServerProcess())
        val back = new GoingBack(use(new Jedis("127.0.0.1", server.port)))
        val partition = new TestPartition(server, between = back.before)
        try body(partition, back)
        finally partition.close()
      }.get
    }

  private def write(store: PartitionVersions, version: Long): Unit = {
    val session = store.open(version).write()
    try {
      values(version + 1).zipWithIndex.foreach { case (value, i) =>
        put(session, key(0, s"k$i"), value)
      }
      session.commit()
      ()
    } finally session.abort()
  }

  private def check(p: TestPartition, version: Long): Unit = {
    val found = rows(p.store("reader").open(version).iterator(0)).map(_._2)
    assert(found.sorted == values(version).map(value => Vectors.hex(value.getBytes(UTF_8))).sorted)
    ()
  }
}

private object GoingBackSuite {
  val Run = "a"
  val Blocks = "blocks"
  val Opened = "opened"
  val Said: Map[String, String] = Map(
    Blocks -> "keeps losing staged blocks",
    Opened -> "keeps forgetting that the version was opened")
  val OnAndOn = 100

  private val Count = 40
  private val Length = 64 << 10

  /** More than one chunk and hardly compressible, so that blocks are staged ahead of the transaction. */
  def values(version: Long): Seq[String] = {
    val random = new Random(version)
    Seq.fill(Count)(random.alphanumeric.take(Length).mkString)
  }

  /** Server that loses data before each run of a script. */
  final class GoingBack(raw: Jedis) {
    private var step = Script.Publish
    private var losses: Seq[String] = Nil

    def left: Int = losses.size

    def lose(step: Script, losses: Seq[String]): Unit = {
      this.step = step
      this.losses = losses
    }

    def before(inner: Transport): Transport = new Transport {
      override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
        if (commands.exists(step.isRunBy)) losses.headOption.foreach { loss =>
          lose(loss)
          losses = losses.tail
        }
        inner.exchange(commands)
      }
      override def close(): Unit = inner.close()
    }

    private def lose(what: String): Unit = {
      val keys = raw.keys("*").asScala
      if (what == Blocks) {
        val published = keys.filter(_.endsWith(":m")).flatMap(raw.hkeys(_).asScala).toSet
        val staged = keys.filter(key => key.contains("}:d:") && !published(key.split("}:", 2)(1)))
        staged.foreach(raw.unlink(_))
      } else {
        val older = Map("r" -> Run, "o" -> "0", "ou" -> "-").asJava
        keys.filter(_.endsWith("}:m")).foreach(raw.hset(_, older))
      }
    }
  }
}
