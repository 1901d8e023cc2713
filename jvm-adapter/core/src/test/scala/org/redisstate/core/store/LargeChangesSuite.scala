package org.redisstate.core.store

import java.lang.management.ManagementFactory

import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{FullException, LimitException}
import org.redisstate.core.format.{MultiValue, SegmentWriter}
import org.redisstate.core.ids.Keys
import org.redisstate.core.local.{LayerSizes, Slice}
import org.redisstate.core.store.resources.MemoryBudget

/**
 * Changes, lists and snapshots that are larger than an array, a value, a server or the memory has
 * room for.
 */
class LargeChangesSuite extends AnyFunSuite with BeforeAndAfterAll with Eventually {
  import TestPartition._

  implicit override val patienceConfig: PatienceConfig = PatienceConfig(20.seconds, 20.millis)
  private val server = new RedisServerProcess()

  override def afterAll(): Unit = server.close()

  private def partition[A](budget: MemoryBudget = new MemoryBudget(1L << 30))(
      body: TestPartition => A): A = {
    val made = new TestPartition(server, budget = budget)
    try body(made)
    finally {
      made.raw.configSet("maxmemory", "0")
      made.raw.flushDB()
      made.close()
    }
  }

  private def commit(store: PartitionVersions, version: Long)(
      change: WriteSession => Unit): Unit = {
    val session = store.open(version).write()
    change(session)
    session.commit(): Unit
  }

  /** Bytes that this thread has allocated so far. */
  private def allocated(): Long = ManagementFactory.getThreadMXBean
    .asInstanceOf[com.sun.management.ThreadMXBean].getThreadAllocatedBytes(
      Thread.currentThread().getId)

  private def length(version: OpenVersion, key: Array[Byte]): Int = {
    val value = new Slice
    if (version.get(key, key.length, value)) value.length else -1
  }

  private def putBytes(session: WriteSession, name: String, value: Array[Byte]): Unit = {
    val at = key(0, name)
    session.put(at, at.length, value, value.length)
  }

  test("a list that would be longer than a value may be is refused before it is written") {
    partition() { p =>
      val store = p.store("a")
      val hot = key(2, "hot")
      val some = MultiValue.encode(Seq(new Array[Byte](10 << 20)))
      for (version <- 0 until 6) commit(store, version) { session =>
        if (version == 0) session.defineFamily(Lists)
        session.append(hot, hot.length, some, some.length)
      }
      for (again <- Seq(store, p.store("a"))) {
        val session = again.open(6).write()
        val refused = intercept[LimitException](session.append(hot, hot.length, some, some.length))
        assert(refused.getMessage.contains(SegmentWriter.ValueBytesMax.toString))
        // The attempt may go on without it.
        put(session, key(0, "other"), "x")
        session.abort()
      }
      commit(store, 6)(put(_, key(0, "other"), "x"))
      assert(store.snapshotIfDue())
      val read = p.store("b").open(7)
      assert(length(read, hot) == 6 * some.length)
      assert(length(read, key(0, "other")) == 1)
    }
  }

  test("loading a large row and then many small ones takes no more memory than these need") {
    partition() { p =>
      val store = p.store("a")
      val large = new Random(1).nextBytes(1 << 20)
      // The first delta may be a base of its own; deltas over an ordered family become layers.
      for (version <- 0 to 1) commit(store, version.toLong) { session =>
        session.defineFamily(Ordered)
        putBytes(session, "large", large)
      }
      commit(store, 2)(session => (0 until 2000).foreach(i => put(session, key(0, s"k$i"), "x")))
      val loaded = p.store("b")
      val before = allocated()
      assert(length(loaded.open(3), key(0, "large")) == large.length)
      assert(allocated() - before < 64 * large.length)
    }
  }

  test("changes that do not fit into one layer are read, and become a snapshot") {
    val sizes = LayerSizes(writeSetMax = 64L << 20, mergedMax = 64L << 10)
    for (seed <- 1 to 4) partition(new MemoryBudget(if (seed % 2 == 0) 8L << 20 else 1L << 30)) {
      p =>
        val random = new Random(seed)
        val store = p.store("a", sizes = sizes)
        var model = Map.empty[String, String]
        for (version <- 0 until 12) {
          commit(store, version) { session =>
            if (version == 0) Seq(Lists, Ordered).foreach(session.defineFamily)
            for (_ <- 1 to 300) {
              val name = s"k${random.nextInt(2000)}"
              if (random.nextInt(4) == 0) {
                session.remove(key(0, name), key(0, name).length)
                model -= name
              } else {
                model += name -> random.alphanumeric.take(100).mkString
                put(session, key(0, name), model(name))
                put(session, key(3, name), "x")
              }
              append(session, key(2, name), "element")
            }
          }
          if (random.nextInt(5) == 0) assert(store.addSnapshot(store.open(version + 1L).pin))
          for (reader <- Seq(store, p.store("a", sizes = sizes), p.store("a"))) {
            val opened = reader.open(version + 1L)
            assert(opened.numKeys == rows(opened.iterator(0)).size +
              rows(opened.iterator(2)).size + rows(opened.iterator(3)).size)
            val value = new Slice
            model.foreach { case (name, wanted) =>
              assert(opened.get(key(0, name), key(0, name).length, value) && text(value) == wanted)
            }
            assert(rows(opened.iterator(0)).size == model.size)
          }
        }
    }
  }

  test("a write set that no layer has room for is refused before it is committed") {
    partition() { p =>
      val store = p.store("a", sizes = LayerSizes(writeSetMax = 9L << 20, mergedMax = 4L << 20))
      val value = Random.nextBytes(64 << 10)
      val session = store.open(0).write()
      intercept[LimitException](
        (0 until 1000).foreach(i => putBytes(session, s"k$i", value)))
      session.abort()
      assert(p.keys.filter(_.startsWith("d:")) == Set.empty)
      commit(store, 0)(session => (0 until 100).foreach(i => putBytes(session, s"k$i", value)))
      assert(p.store("a").open(1).numKeys == 100)
      // What was put anew each time counts once.
      commit(store, 1)(session =>
        (0 until 1000).foreach(i => putBytes(session, s"k${i % 8}", value)))
      assert(p.store("a").open(2).numKeys == 100)
    }
  }

  test("a snapshot that a full server has no room for takes none") {
    partition() { p =>
      val store = p.store("a")
      val random = new Random(1)
      for (version <- 0 until 4) commit(store, version) { session =>
        (0 until 64).foreach(i => putBytes(session, s"k$version-$i", random.nextBytes(32 << 10)))
      }
      val used = "used_memory:(\\d+)".r.findFirstMatchIn(p.raw.info("memory")).get.group(1).toLong
      p.raw.configSet("maxmemory", (used + (3L << 20)).toString)
      store.open(4).write().abort()
      intercept[FullException] {
        store.requestSnapshot()
        store.addSnapshot(store.open(4).pin)
      }
      eventually(assert(!p.keys.exists(_.startsWith("s:"))))
      commit(store, 4)(putBytes(_, "after", random.nextBytes(32 << 10)))
    }
  }

  test("a pass over a store that was closed meanwhile keeps nothing that nobody counts") {
    partition() { filled =>
      val writer = filled.store("a")
      val random = new Random(1)
      for (version <- 0 until 4) commit(writer, version) { session =>
        (0 until 2000).foreach(i => putBytes(session, s"k$version-$i", random.nextBytes(4000)))
      }
      assert(writer.addSnapshot(writer.open(4).pin))
      writer.close()
      val budget = new MemoryBudget(4L << 20)
      val p = new TestPartition(server, gen = filled.id.gen, budget = budget)
      try {
        val store = p.store("b")
        val opened = store.open(4)
        val before = opened.iterator(0)
        store.close()
        assert(rows(before).size == 8000)
        assert(opened.local.content.base.memoryBytes < (4L << 20))
        // A single row does not bring its neighbours along, which would not stay.
        val read = store.client.bytesRead.get
        assert(length(opened, key(0, "k1-1")) == 4000)
        assert(store.client.bytesRead.get - read < (200 << 10))
        assert(budget.usedBytes == 0)
      } finally p.close()
    }
  }

  test("a commit asks Redis for nothing once it is done") {
    partition() { p =>
      val store = p.store("a")
      commit(store, 0)(put(_, key(0, "a"), "1"))
      val session = store.open(1).write()
      put(session, key(0, "b"), "2")
      store.cache.forget()
      val delta = Keys.meta(p.id).dropRight(1) + p.keys.find(_.startsWith("d:1:")).get
      p.raw.rename(delta, "aside")
      session.commit()
      p.raw.rename("aside", delta)
      assert(session.hasCommitted)
      val value = new Slice
      assert(Seq("a", "b").forall(name =>
        store.open(2).get(key(0, name), key(0, name).length, value)))
    }
  }
}
