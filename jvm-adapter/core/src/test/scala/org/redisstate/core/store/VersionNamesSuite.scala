package org.redisstate.core.store

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.ids.Keys
import org.redisstate.core.protocol.names.KeptStore

/** Names that the driver gives to versions (docs/format.md, section 14). */
class VersionNamesSuite extends AnyFunSuite {
  import VersionNamesSuite._

  test("a kept version has a pin in every partition") {
    onStore { (all, query) =>
      assert(keep(all, "auto-1", batch = 1))
      all.foreach { one =>
        val pin = pinOf(one, "auto-1").split(" ")
        assert(pin.take(2).toSeq == Seq("2", "u2"))
        // The pin outlives the name.
        assert(pin(2).toLong > NowMs)
        assert(pin.drop(3).toSeq == Seq("keep", "d:2:u2", "d:1:u1"))
      }
      val entry = all.head.raw.hget(query, "keep:auto-1")
      val owner = ownerOf(all.head, "auto-1")
      assert(owner.matches("keep\\.auto-1\\.[0-9a-f]{8}"))
      assert(ownerOf(all(1), "auto-1") == owner)
      val pins = s""""owner":"$owner","pins":{"0:default":2}"""
      val expires = NowMs + ForMs
      assert(entry == s"""{"batch":1,"version":2,"at":$NowMs,"expires":$expires,$pins}""")
      val times = all.head.names.timesOf(all.head.raw.hgetAll(query).asScala.toMap, "auto-")
      assert(times.toSeq == Seq(NowMs))
    }
  }

  test("an existing name is not changed") {
    onStore { (all, query) =>
      assert(keep(all, "auto-1", batch = 1))
      val before = all.head.raw.hgetAll(query).asScala.toMap
      assert(!keep(all, "auto-1", batch = 0))
      assert(all.head.raw.hgetAll(query).asScala.toMap == before)
      assert(all.forall(pinOf(_, "auto-1").startsWith("2 ")))
    }
  }

  test("a slower call does not end the pins of a faster one") {
    onStore { (all, query) =>
      // Looked at once it is known that the name is free.
      val stores = LazyList.fill(1) {
        assert(keep(all, "auto-1", batch = 1))
        KeptStore(0, "default", 2, None)
      }
      assert(!all.head.names.keep("auto-1", 0, stores, NowMs, ForMs))
      assert(all.head.raw.hexists(query, "keep:auto-1"))
      assert(all.forall(pinOf(_, "auto-1").startsWith("2 ")))
    }
  }

  test("if one partition refuses, the pins of the others end") {
    onStore { (all, query) =>
      all(1).raw.hdel(Keys.meta(all(1).id), "d:1:u1")
      intercept[RedisStateException](keep(all, "auto-1", batch = 1))
      assert(all.forall(pinOf(_, "auto-1") == null))
      assert(!all.head.raw.exists(query))
      all.head.raw.del(Keys.meta(all.head.id))
      intercept[RedisStateException](keep(all, "auto-1", batch = 1))
      assert(!all.head.raw.exists(query))
    }
  }

  test("partitions that were never written are skipped") {
    onStore { (all, query) =>
      val store = Seq(KeptStore(0, "default", 5, None))
      assert(all.head.names.keep("auto-1", 1, store, NowMs, ForMs))
      assert(all.head.raw.hget(query, "keep:auto-1").contains(""""0:default":2"""))
    }
  }

  test("Spark's log chooses among the attempts of a version") {
    onStore { (all, _) =>
      all.foreach(_.plant("d:2:other", "d:2:other", "u1 0 0 0 0 1 0 -", Map.empty))
      val attempts = Some(Seq(Seq("absent", "other"), Seq("u2")))
      val store = Seq(KeptStore(0, "default", 2, attempts))
      assert(all.head.names.keep("auto-1", 1, store, NowMs, ForMs))
      assert(all.map(pinOf(_, "auto-1").split(" ")(1)) == Seq("other", "u2"))
    }
  }

  private def keep(all: Seq[TestPartition], name: String, batch: Long): Boolean =
    all.head.names.keep(name, batch, Seq(KeptStore(0, "default", 2, None)), NowMs, ForMs)

  private def pinOf(one: TestPartition, name: String): String =
    one.raw.hget(Keys.meta(one.id), s"x:${ownerOf(one, name)}")

  private def ownerOf(one: TestPartition, name: String): String =
    one.raw.hkeys(Keys.meta(one.id)).asScala.toSeq.filter(_.startsWith(s"x:keep.$name.")) match {
      case Seq(field) => field.drop("x:".length)
      case Seq() => "-"
      case more => fail(s"the name has the pins $more")
    }

  /** Two partitions with two versions each. */
  private def onStore(use: (Seq[TestPartition], String) => Unit): Unit =
    Using.resource(new RedisServerProcess) { server =>
      val gen = TestPartition.newGen()
      val all = (0 to 1).map(number => new TestPartition(server, gen = gen, number = number))
      try {
        all.foreach { one =>
          one.plant("d:1:u1", "d:1:u1", "- 0 0 0 0 1 0 c", Map.empty)
          one.plant("d:2:u2", "d:2:u2", "u1 0 0 0 0 1 0 -", Map.empty)
          one.plantHead(2, "u2")
        }
        use(all, Keys.query("", gen))
      } finally all.foreach(_.close())
    }
}

private object VersionNamesSuite {
  private val NowMs = 1700000000000L
  private val ForMs = 3600000L
}
