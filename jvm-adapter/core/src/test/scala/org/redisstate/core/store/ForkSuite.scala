package org.redisstate.core.store

import scala.collection.mutable
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.RedisClusterProcesses
import org.redisstate.core.errors.StateLostException
import org.redisstate.core.format.BlockSigner
import org.redisstate.core.ids.Keys
import org.redisstate.core.local.Slice
import org.redisstate.core.protocol.CheckpointFormat

/**
 * Forks, whose segments are another checkpoint's, until they have their own (docs/format.md,
 * section 14).
 */
class ForkSuite extends AnyFunSuite {
  import ForkSuite._
  import ForkedPartitions._

  private val signer = Some(new BlockSigner(Array.fill(32)(7.toByte)))

  for (format <- Seq(CheckpointFormat.V1, CheckpointFormat.V2); signed <- Seq(None, signer))
    test(s"a fork and its parent go on for themselves: format ${format.number}, ${named(signed)}") {
      onServer { server => goOn(partition(server), partition(server), format, signed) }
    }

  test("a fork and its parent continue independently, on two nodes of a cluster") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      def on(node: Int): TestPartition = Iterator.continually {
        val one = new TestPartition(
          cluster.nodes(node),
          versionsToRetain = Retained,
          url = Some(s"redis+cluster://127.0.0.1:${cluster.nodes.head.port}"))
        if (cluster.ownerOf(cluster.slotOf(Keys.meta(one.id))) == node) Some(one)
        else {
          one.close()
          None
        }
      }.flatten.next()
      val (parent, fork) = (on(0), on(1))
      try goOn(parent, fork, CheckpointFormat.V1, signer)
      finally Seq(parent, fork).foreach(_.close())
    }.get
  }

  test("a fork of a fork reads segments of its grandparent, until it has its own") {
    onServer { server =>
      val parent = begun(partition(server), CheckpointFormat.V1, None)
      val fork = parent.fork(partition(server), "fork", parent.at)
      fork.commit(1)
      val nested = fork.fork(partition(server), "nested", fork.at)
      val places = PinFields.of(nested.partition, "a").values.toSet
      assert(places == Set(parent, fork).map(one => s"p ${one.partition.id.gen}"))
      parent.commit(3)
      parent.maintain()
      untilOwn(fork)
      // What the nested fork pins is set aside there, and is the grandparent's all the same.
      assert(PinFields.of(fork.partition, "z").nonEmpty)
      assert(PinFields.of(fork.partition, "a").keySet.forall(PinFields.of(
        fork.partition,
        "z").contains))
      assert(fork.partition.meta("gt") == null)
      nested.checkAll()
      untilOwn(nested)
      detached(nested, fork)
      fork.retain()
      assert(PinFields.of(fork.partition, "a").isEmpty)
      detached(fork, parent)
      Seq(parent, fork, nested).foreach(_.checkAll())
    }
  }

  test("a fork reads a parent purged by force for a day, and then names it") {
    onServer { server =>
      val parent = begun(partition(server), CheckpointFormat.V1, signer)
      val fork = parent.fork(partition(server), "fork", parent.at)
      val gen = parent.partition.id.gen
      def purge(args: String*) =
        script(parent.partition.backend, "purge", parent.partition.id, args: _*)
      assert(purge(DayMs.toString, gen) == Seq("PINNED", fork.partition.id.gen))
      assert(purge(DayMs.toString, gen, "1").head == "OK")
      fork.checkAll()
      fork.commit(1)
      fork.checkAll()
      assert(purge("0", gen, "1").head == "OK")
      val failure = intercept[StateLostException](fork.check(fork.at))
      assert(failure.getMessage.contains(s"was forked from checkpoint $gen, which does not have"))
      assert(failure.getMessage.contains("purged with --force"))
      val open = fork.coldStore
      assertThrows[StateLostException](open.open(fork.at))
    }
  }

  test("changes of a version come from its foreign delta, and are lost with its parent") {
    onServer { server =>
      val parent = begun(partition(server), CheckpointFormat.V1, None)
      val fork = parent.fork(partition(server), "fork", parent.at)
      val opened = fork.coldStore.open(fork.at)
      val changes = opened.changes(0)
      val (key, value) = (new Slice, new Slice)
      assert(
        Iterator.continually(changes.next(key, value)).takeWhile(_.nonEmpty).size == ChangesOfOne)
      script(parent.partition.backend, "purge", parent.partition.id, "0", "x", "1")
      val failure = intercept[StateLostException](opened.changes(0))
      assert(failure.getMessage.contains("was forked from checkpoint"))
    }
  }

  /** The whole life of a fork: until it names no segment of its parent, and the parent lets go. */
  private def goOn(
      from: TestPartition,
      to: TestPartition,
      format: CheckpointFormat,
      signer: Option[BlockSigner]): Unit = {
    val parent = begun(from, format, signer)
    val fork = parent.fork(to, "fork", parent.at)
    val pinned = PinFields.of(from, "y").keySet
    assert(PinFields.of(to, "a").keySet == pinned)
    assert(pinned.map(_.take(2)) == Set("d:", "s:"))
    fork.checkAll()
    // The parent goes back behind the fork, then drops all that the fork was made of.
    parent.commit(1)
    parent.rewind(fork.at - 1)
    parent.commit(3)
    val isDropped = format == CheckpointFormat.V1
    assert(PinFields.of(from, "z").keySet == pinned.filter(one =>
      isDropped && one.startsWith("d:6:")))
    Seq(parent, fork).foreach(_.checkAll())
    for (_ <- 0 to 1) {
      parent.maintain()
      parent.commit(3)
    }
    parent.maintain()
    assert(PinFields.of(from, "z").keySet == pinned)
    Seq(parent, fork).foreach(_.checkAll())
    fork.commit(3)
    Seq(parent, fork).foreach(_.checkAll())
    assert(PinFields.of(to, "a").keySet == pinned)
    untilOwn(fork)
    detached(fork, parent)
    // Nobody holds them now: the next retention of the parent drops them.
    assert(PinFields.of(from, "z").keySet == pinned)
    parent.retain()
    assert(from.meta("f") == "1" && to.meta("f") == "1")
    pinned.foreach { ident =>
      val left = from.raw.pttl(Keys.segment(from.id, ident))
      assert(left > 0 && left <= DroppedMs)
    }
    Seq(parent, fork).foreach { one =>
      one.commit(1)
      one.maintain()
      one.checkAll()
    }
    assert(from.damaged.isEmpty && to.damaged.isEmpty)
  }

  /** Snapshots and retention, until the fork has all segments itself; it reads each version meanwhile. */
  private def untilOwn(fork: Timeline): Unit = {
    val partition = fork.partition
    def foreign = PinFields.of(partition, "a").keySet -- PinFields.of(partition, "z").keySet
    val rounds = Iterator.continually {
      fork.commit(1)
      fork.maintain()
      fork.checkAll()
      foreign
    }.take(Rounds).takeWhile(_.nonEmpty).size
    assert(foreign.isEmpty && rounds > 0, "the first snapshot must leave versions below it")
  }

  /** Moves the clock by a day for the fork: retention then ends its pin. */
  private def detached(fork: Timeline, parent: Timeline): Unit = {
    def pins = PinFields.of(parent.partition, "x")
    val owner = fork.partition.id.gen
    fork.retain()
    val since = fork.partition.meta("gt").toLong
    def sinceWas(ms: Long): Unit = {
      fork.partition.raw.hset(Keys.meta(fork.partition.id), "gt", ms.toString)
      fork.retain()
    }
    sinceWas(since - DayMs + HourMs)
    assert(pins.contains(owner) && fork.partition.meta("g") != null)
    sinceWas(since - DayMs)
    assert(!pins.contains(owner) && fork.partition.meta("g") == null)
    assert(fork.partition.meta("gt") == null)
  }

  private def begun(
      p: TestPartition,
      format: CheckpointFormat,
      signer: Option[BlockSigner]): Timeline = {
    val parent = new Timeline(p, "parent", format, signer)
    parent.commit(4)
    parent.maintain()
    parent.commit(2)
    // Opened, so that this version is a confirmed one.
    parent.check(parent.at)
    parent
  }

  private val opened = mutable.ArrayBuffer.empty[TestPartition]

  private def partition(server: RedisServerProcess) = {
    opened += new TestPartition(server, versionsToRetain = Retained)
    opened.last
  }

  private def onServer(body: RedisServerProcess => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      try body(server)
      finally {
        opened.foreach(_.close())
        opened.clear()
      }
    }

  private def named(signer: Option[BlockSigner]) = signer.fold("not signed")(_ => "signed")
}

private object ForkSuite {
  val Retained = 2
  val Rounds = 8
  val ChangesOfOne = 43
  val HourMs: Long = 3600L * 1000
  val DroppedMs: Long = 10L * 60 * 1000
}
