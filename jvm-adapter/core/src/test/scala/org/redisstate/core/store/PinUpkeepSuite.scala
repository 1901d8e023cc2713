package org.redisstate.core.store

import scala.collection.mutable
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Script, Transport}
import org.redisstate.core.ids.Keys

/** Pins that an executor's maintenance ends, and what it leaves alone when that is not possible. */
class PinUpkeepSuite extends AnyFunSuite {
  import ForkedPartitions._
  import PinUpkeepSuite._

  test("expired pins end, and retention then drops what only they held") {
    onServer() { scene =>
      val p = scene.partition
      val query = begun(p)
      pin(p, "keep.over", query.newest, ttlMs = DayMs)
      pin(p, "keep.later", query.newest, ttlMs = DayMs)
      pin(p, "keep.ever", query.newest)
      val pinned = PinFields.of(p, "y").keySet
      dropAll(query)
      assert(PinFields.of(p, "z").keySet == pinned)
      expiry(p, "keep.over", 1)
      query.retain()
      assert(PinFields.of(p, "x").keySet == Set("keep.later", "keep.ever"))
      assert(PinFields.of(p, "y").values.toSet == Set("keep.later keep.ever"))
      Seq("keep.later", "keep.ever").foreach(owner => script(p.backend, "unpin", p.id, owner, ""))
      pin(p, "keep.new", query.newest, ttlMs = DayMs)
      expiry(p, "keep.new", 1)
      // One drops what was free before, and ends the new pin; with that the partition has none.
      query.retain()
      assert(Seq("x", "y", "z").forall(PinFields.of(p, _).isEmpty))
      query.retain()
      assert(p.meta("f") == "1")
      query.checkAll()
    }
  }

  test("the clock is asked only for pins that expire") {
    val sent = mutable.ArrayBuffer.empty[String]
    val watching = before(commands => sent.synchronized(sent ++= commands.map(_.name)): Unit) _
    onServer(watching) { scene =>
      val p = scene.partition
      val query = begun(p)
      pin(p, "keep.ever", query.newest)
      def asks(retained: => Unit): Int = {
        sent.clear()
        retained
        sent.count(_ == "TIME")
      }
      assert(asks(query.retain()) == 0)
      pin(p, "keep.later", query.newest, ttlMs = DayMs)
      pin(p, "keep.latest", query.newest, ttlMs = DayMs)
      assert(asks(query.retain()) == 1)
      assert(PinFields.of(p, "x").size == 3)
    }
  }

  test("a pin that is renewed during its end stays") {
    var renew = () => ()
    val renewing = before { commands =>
      if (commands.exists(Script.Unpin.isRunBy)) renew()
    } _
    onServer(renewing) { scene =>
      val p = scene.partition
      val query = begun(p)
      pin(p, "keep.renewed", query.newest, ttlMs = DayMs)
      expiry(p, "keep.renewed", 1)
      var renewed = 0
      renew = () => {
        renewed += 1
        expiry(p, "keep.renewed", Long.MaxValue / 1024)
      }
      query.retain()
      assert(renewed > 0)
      assert(PinFields.of(p, "x").keySet == Set("keep.renewed"))
      assert(PinFields.of(p, "y").nonEmpty)
    }
  }

  test("a pin that cannot be ended fails nothing else, and ends in a later pass") {
    onServer() { scene =>
      val p = scene.partition
      val query = begun(p)
      pin(p, "keep.damaged", query.newest, ttlMs = DayMs)
      pin(p, "keep.over", query.newest, ttlMs = DayMs)
      expiry(p, "keep.over", 1)
      p.raw.hset(Keys.meta(p.id), "x:keep.damaged", "what is this")
      query.retain()
      assert(PinFields.of(p, "x").keySet == Set("keep.damaged"))

      val fork = query.fork(scene.another(), "fork", query.at)
      val meta = Keys.meta(p.id)
      val manifest = p.raw.dump(meta)
      dropAll(fork)
      fork.retain()
      fork.partition.raw.hset(Keys.meta(fork.partition.id), "gt", "1")
      p.raw.del(meta)
      p.raw.set(meta, "of another type, so that its script fails")
      fork.commit(1)
      fork.maintain()
      assert(fork.partition.meta("g") != null)
      fork.checkAll()
      p.raw.del(meta)
      p.raw.restore(meta, 0, manifest)
      fork.retain()
      assert(fork.partition.meta("g") == null && fork.partition.meta("f") == "1")
      assert(!PinFields.of(p, "x").contains(fork.partition.id.gen))
    }
  }

  test("a fork is detached from a purged parent once that is recalled, or removed") {
    onServer() { scene =>
      val p = scene.partition
      val query = begun(p)
      val forks = Seq("first", "second").map { name =>
        val fork = query.fork(scene.another(), name, query.at)
        dropAll(fork)
        fork.retain()
        fork.partition.raw.hset(Keys.meta(fork.partition.id), "gt", "1")
        fork
      }
      script(p.backend, "purge", p.id, DayMs.toString, p.id.gen, "1")
      forks.foreach(_.retain())
      assert(forks.forall(_.partition.meta("g") != null))
      assert(script(p.backend, "recall", p.id).head == "OK")
      forks.head.retain()
      assert(forks.map(_.partition.meta("g") == null) == Seq(true, false))
      assert(PinFields.of(p, "x").keySet == Set(forks.last.partition.id.gen))
      script(p.backend, "purge", p.id, "0", p.id.gen, "1")
      forks.last.retain()
      assert(forks.last.partition.meta("g") == null)
      forks.foreach(_.checkAll())
    }
  }

  /** Commits and snapshots until no segment of before is left in the manifest. */
  private def dropAll(query: Timeline): Unit = for (_ <- 0 to 3) {
    query.commit(1)
    query.maintain()
  }

  private def begun(p: TestPartition): Timeline = {
    val query = new Timeline(p, "query")
    query.commit(3)
    query
  }

  private def onServer(between: Transport => Transport = identity)(body: Scene => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val scene = new Scene(server, between)
      try body(scene)
      finally scene.close()
    }
}

private object PinUpkeepSuite {
  final class Scene(server: RedisServerProcess, between: Transport => Transport) {
    private val opened = mutable.ArrayBuffer.empty[TestPartition]
    val partition: TestPartition = another()

    def another(): TestPartition = {
      opened += new TestPartition(server, versionsToRetain = 1, between = between)
      opened.last
    }

    def close(): Unit = opened.foreach(_.close())
  }

  /** Sets the expiry of a pin, as time or a renewal does. */
  def expiry(p: TestPartition, owner: String, ms: Long): Unit = {
    val words = p.meta(s"x:$owner").split(' ').toSeq
    p.raw.hset(Keys.meta(p.id), s"x:$owner", words.updated(2, ms.toString).mkString(" "))
    ()
  }

  def before(look: Seq[Command] => Unit)(inner: Transport): Transport = new Transport {
    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      look(commands)
      inner.exchange(commands)
    }
    override def close(): Unit = inner.close()
  }
}
