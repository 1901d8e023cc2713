package org.redisstate.core.store

import scala.collection.mutable
import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Transport}
import org.redisstate.core.ids.Pin
import org.redisstate.core.protocol.SegmentIo

/** Commands of a commit, whose blocks pass a script only where some are staged already. */
class BlocksApartSuite extends AnyFunSuite {
  import BlocksApartSuite._

  test("the blocks of a commit go along under a key of their own") {
    committing(40, 8) { (p, sent) =>
      assert(sent.last.names == Seq("MULTI", "HSET", "PEXPIRE", "EVAL", "EXEC"))
      assert(
        sent.count(_.names.contains("HSET")) == 2,
        "by the hash of a script that the server lacked")
      assert(p.keys.count(_.startsWith("d:1:")) == 1)
      assert(!p.keys.exists(_.startsWith("n:")))
    }
  }

  test("more than one chunk of blocks passes the script that stages them") {
    committing(40, 64 << 10) { (p, sent) =>
      assert(!sent.flatMap(_.names).contains("HSET"))
      assert(sent.last.bytes < SegmentIo.StagedByScriptMax + WordsBytes)
      assert(p.keys.count(_.startsWith("d:1:")) == 1)
    }
  }

  /** Commits rows to a new partition, and passes its transactions to a check. */
  private def committing(rows: Int, length: Int)(
      check: (TestPartition, Seq[Sent]) => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val sent = mutable.ArrayBuffer.empty[Sent]
      val p = new TestPartition(server, between = recording(_, sent))
      try {
        val random = new Random(1)
        val session = p.store("run").open(0).write()
        (0 until rows).foreach(i =>
          TestPartition.put(
            session,
            TestPartition.key(0, s"k$i"),
            random.alphanumeric.take(length).mkString))
        assert(session.commit().version == 1)
        check(p, sent.toSeq)
        val found = TestPartition.rows(p.store("reader").open(1).iterator(0))
        assert(found.length == rows)
        assert(p.client.open("", Some(1), None, Seq.empty[Pin]).segments.length == 1)
      } finally p.close()
    }
}

private object BlocksApartSuite {

  /** More than the scripts of a transaction have beside their blocks, texts included. */
  val WordsBytes = 64 << 10

  final case class Sent(names: Seq[String], bytes: Long)

  def recording(inner: Transport, sent: mutable.Buffer[Sent]): Transport = new Transport {
    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      if (commands.head.name == "MULTI")
        sent += Sent(commands.map(_.name), commands.map(_.bytes).sum)
      inner.exchange(commands)
    }
    override def close(): Unit = inner.close()
  }
}
