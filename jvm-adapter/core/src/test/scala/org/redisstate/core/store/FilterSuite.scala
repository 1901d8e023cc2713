package org.redisstate.core.store

import scala.collection.mutable
import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice
import org.redisstate.core.places.PlayedFiles
import org.redisstate.core.store.resources.{Evictable, MemoryBudget}

/** Filters of files, which answer look-ups of rows that are not there. */
final class FilterSuite extends AnyFunSuite {
  import FilterSuite._
  import TestPartition._

  Seq(true -> "was born in a file", false -> "was moved into a file").foreach {
    case (isBorn, title) =>
      test(s"keys that are not in a base that $title cost no read") {
        onFiles { (writer, of, files) =>
          val at = fill(writer, isBorn)
          val reader = of(new MemoryBudget(SmallMemory))
          val opened = reader.open(at)
          val before = files.reads.size
          absent.foreach(i => assert(!contains(opened, keyOf(i))))
          val reads = files.reads.size - before
          assert(reads * 40 < absent.size)
          assert(reader.counters.filterSkips.get > absent.size * 8 / 10)
          (0 until Rows by 17).foreach(i => assert(get(opened, keyOf(i)).contains(valueOf(i))))
        }
      }
  }

  test("keys that are not there cost no read beside changes that stay in Redis") {
    onFiles { (writer, of, files) =>
      var at = fill(writer, isBorn = true)
      val store = writer.store("b")
      store.client.bindTo(Share)
      (1 to Deltas).foreach { version =>
        val session = store.open(at).write()
        (0 until 2000).foreach(i => put(session, keyOf(Rows + 2000 * version + i), valueOf(i)))
        at = session.commit().version
        if (version == Deltas / 2) while (store.client.files.makeRoom(Share).nonEmpty) {}
      }
      val filed = PinFields.of(writer, "a").collect { case (ident, s"f $_") => ident }
      assert(filed.count(_.startsWith("d:")) == Deltas / 2)
      val reader = of(new MemoryBudget(SmallMemory))
      val opened = reader.open(at)
      val before = files.reads.size
      absent.foreach(i => assert(!contains(opened, keyOf(i))))
      // Each of seven filters passes some of the keys.
      assert((files.reads.size - before) * 3 < absent.size)
      assert(reader.counters.filterSkips.get > absent.size * 3 / 4)
      (1 to Deltas).foreach(version =>
        (0 until 2000 by 97).foreach(i =>
          assert(get(opened, keyOf(Rows + 2000 * version + i)).contains(valueOf(i)))))
    }
  }

  test("changes that stay in Redis are not read for a filter without room") {
    onFiles { (writer, of, _) =>
      var at = fill(writer, isBorn = true)
      val store = writer.store("b")
      store.client.bindTo(Share)
      (1 to 3).foreach { version =>
        val session = store.open(at).write()
        (0 until 2000).foreach(i => put(session, keyOf(Rows + 2000 * version + i), valueOf(i)))
        at = session.commit().version
      }
      val reader = of(new MemoryBudget(TinyMemory))
      val opened = reader.open(at)
      IdleBackground.await()
      val before = reader.counters.bucketsLoaded.get
      assert(!contains(opened, keyOf(absent.head)))
      // A bucket of each segment.
      assert(reader.counters.bucketsLoaded.get - before <= 4)
    }
  }

  test("nothing is read ahead of keys that are not there") {
    onFiles { (writer, of, files) =>
      val at = fill(writer, isBorn = true)
      val opened = of(new MemoryBudget(SmallMemory)).open(at)
      val prefetch = opened.prefetch().get
      val before = files.reads.size
      absent.take(500).foreach(i => prefetch.add(keyOf(i), keyOf(i).length))
      prefetch.start()
      prefetch.await()
      assert(files.reads.size - before < 20)
      prefetch.close()
    }
  }

  test("a scan of a prefix that is not there costs no read") {
    onFiles { (writer, of, files) =>
      val at = fill(writer, isBorn = false)
      val opened = of(new MemoryBudget(SmallMemory)).open(at)
      val before = files.reads.size
      absent.take(500).foreach { i =>
        val prefix = prefixed(s"p$i", "")
        assert(rows(opened.prefixScan(prefix, prefix.length)).isEmpty)
      }
      assert(files.reads.size - before < 20)
      (0 until Rows by 50).foreach { i =>
        val prefix = prefixed(s"p$i", "")
        assert(rows(opened.prefixScan(prefix, prefix.length)).size == 1)
      }
    }
  }

  test("filters take at most a quarter of the memory, and count in it") {
    onFiles { (writer, of, files) =>
      val at = fill(writer, isBorn = true)
      Seq(64L << 10, SmallMemory).foreach { memory =>
        val budget = new MemoryBudget(memory)
        val reader = of(budget)
        val opened = reader.open(at)
        absent.take(300).foreach(i => assert(!contains(opened, keyOf(i))))
        val isKept = reader.counters.filterSkips.get > 0
        assert(isKept == (memory == SmallMemory))
        assert(budget.admitsFilter(memory / 4) != isKept)
        (0 until Rows by 111).foreach(i => assert(get(opened, keyOf(i)).contains(valueOf(i))))
        reader.close()
        assert(budget.admitsFilter(memory / 4))
      }
    }
  }

  test("filters that nobody asks for count in the memory, and make way first") {
    onFiles { (writer, of, _) =>
      val at = fill(writer, isBorn = true)
      val budget = new MemoryBudget(SmallMemory)
      val reader = of(budget)
      reader.open(at)
      val fresh = reader.client.segments.freshFilterBytes
      assert(fresh > Rows)
      assert(budget.usedBytes >= fresh)
      budget.take(SmallMemory)
      assert(reader.client.segments.freshFilterBytes == 0)
      val opened = reader.open(at)
      (0 until Rows by 111).foreach(i => assert(get(opened, keyOf(i)).contains(valueOf(i))))
      budget.give(SmallMemory)
      reader.close()
      assert(budget.usedBytes == 0)
    }
  }

  test("write sets leave room for rows that are read, whatever filters take") {
    val budget = new MemoryBudget(1L << 20)
    var calls = 0
    budget.register(new Evictable {
      private def called(): Long = {
        calls += 1
        0L
      }
      override def shrink(bytes: Long, everything: Boolean): Long = called()
      override def drop(bytes: Long): Long = called()
      override def forget(): Long = called()
    })
    val (sessions, filters) = (1L << 20, 1L << 18)
    budget.adjust(sessions + filters, sessions, filters)
    budget.take(64L << 10)
    assert(calls == 0)
    budget.take(1L << 20)
    assert(calls > 0)
  }

  (1 to 6).foreach { seed =>
    test(s"filters lose no row, whatever lies in files: seed $seed") {
      onFiles { (writer, of, _) =>
        val random = new Random(seed)
        val model = mutable.HashMap.empty[String, String]
        var at = fill(writer, isBorn = random.nextBoolean())
        (0 until Rows).foreach(i => model(s"k$i") = valueOf(i))
        val lists = mutable.HashMap.empty[String, Int]
        val store = writer.store("b")
        (1 to 5).foreach { version =>
          val session = store.open(at).write()
          session.defineFamily(Lists)
          (0 until (if (random.nextBoolean()) 3000 else 40)).foreach { _ =>
            val i = random.nextInt(Rows * 2)
            random.nextInt(4) match {
              case 0 =>
                session.remove(keyOf(i), keyOf(i).length)
                model.remove(s"k$i")
              case 1 =>
                append(session, key(2, s"k$i"), "x")
                lists(s"k$i") = lists.getOrElse(s"k$i", 0) + 1
              case _ =>
                put(session, keyOf(i), s"new $version $i")
                model(s"k$i") = s"new $version $i"
            }
          }
          at = session.commit().version
          if (random.nextBoolean()) store.client.files.keepRoom(Share)
        }
        store.client.files.keepRoom(Share)
        while (store.client.files.makeRoom(1 << 20).nonEmpty) {}
        Seq(
          new MemoryBudget(TinyMemory),
          new MemoryBudget(SmallMemory),
          new MemoryBudget(1L << 30)).foreach {
          budget =>
            val reader = of(budget)
            val opened = reader.open(at)
            val all = random.shuffle((0 until Rows * 2 + 500).toList)
            all.foreach { i =>
              assert(get(opened, keyOf(i)) == model.get(s"k$i"), s"k$i")
              val listed = get(opened, key(2, s"k$i")).map(_.length)
              assert(listed == lists.get(s"k$i").map(_ * 3), s"list $i")
            }
            reader.close()
        }
      }
    }
  }

  private def onFiles(
      body: (TestPartition, MemoryBudget => PartitionVersions, PlayedFiles) => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val files = new PlayedFiles
      val writer = new TestPartition(server, 2, folders = Some(files))
      def of(budget: MemoryBudget): PartitionVersions = {
        val p = new TestPartition(
          server,
          2,
          gen = writer.id.gen,
          folders = Some(files),
          budget = budget)
        // Nothing is read that no look-up needs.
        if (budget.bytesMax > SmallMemory) budget.take(budget.bytesMax / 10 * 9)
        p.store("reader")
      }
      try body(writer, of, files)
      finally writer.close()
    }

  /** Writes a base with two families, and has it in a file. */
  private def fill(p: TestPartition, isBorn: Boolean): Long = {
    val store = p.store("a")
    if (isBorn) store.client.bindTo(Share)
    val session = store.open(0).write()
    session.defineFamily(Prefixed)
    (0 until Rows).foreach { i =>
      put(session, keyOf(i), valueOf(i))
      put(session, prefixed(s"p$i", "x"), valueOf(i))
    }
    val at = session.commit().version
    store.open(at)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    if (!isBorn) {
      store.client.bindTo(Share)
      while (store.client.files.makeRoom(Share).nonEmpty) {}
    }
    at
  }
}

private object FilterSuite {
  private val Rows = 20000
  private val Deltas = 6
  private val Share = 4L << 20
  private val SmallMemory = 512L << 10
  private val TinyMemory = 96L << 10
  private val absent = Rows * 3 until Rows * 3 + 4000

  def keyOf(i: Int): Array[Byte] = TestPartition.key(0, s"k$i")

  /** A value that does not compress. */
  def valueOf(i: Int): String = new Random(i).alphanumeric.take(80).mkString

  def contains(opened: OpenVersion, key: Array[Byte]): Boolean =
    opened.contains(key, key.length)

  def get(opened: OpenVersion, key: Array[Byte]): Option[String] = {
    val found = new Slice
    Option.when(opened.get(key, key.length, found))(TestPartition.text(found))
  }
}
