package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.{Family, Tombstone, Vectors}
import org.redisstate.core.local.{ChangeTrace, Layer}

/** Rows of a batch that runs, as readers find them before the commit. */
class PreviewSuite extends AnyFunSuite with BeforeAndAfterAll {
  import PreviewSuite._
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def withPartition(test: TestPartition => Unit): Unit = {
    val p = new TestPartition(server)
    try test(p)
    finally p.close()
  }

  /** A store whose previews are set by the test alone. */
  private def previewing(p: TestPartition, run: String): PartitionVersions =
    p.store(run, previewEveryMs = Some(3600000L))

  private def preview(session: WriteSession): Unit = session.preview.get.run()

  private def all(session: WriteSession): Map[String, String] =
    Families.flatMap(family => rows(session.iterator(family.id))).toMap

  private def define(session: WriteSession): Unit = Families.tail.foreach(session.defineFamily)

  test("a preview has the rows that the attempt has changed so far") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      put(session, key(0, "x"), "1")
      preview(session)
      val first = p.preview.get
      assert(first.version == 1 && first.parent == "-" && first.number == 1)
      assert(first.over(Map.empty) == all(session))
      put(session, key(0, "y"), "2")
      assert(p.preview.get == first)
      preview(session)
      assert(p.preview.get.over(Map.empty) == all(session))
      assert(p.preview.get.expiriesMs.forall(_ > 60000))
    }
  }

  test("no preview is set while nothing changes, and none without a change") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      preview(session)
      assert(p.preview.isEmpty)
      put(session, key(0, "x"), "1")
      preview(session)
      preview(session)
      assert(p.preview.get.number == 1)
    }
  }

  test("a commit, an abort and a newer run end the preview") {
    withPartition { p =>
      val committed = previewing(p, "a").open(0).write()
      put(committed, key(0, "x"), "1")
      preview(committed)
      committed.commit()
      assert(p.preview.isEmpty && p.meta("u") == null)
      val aborted = previewing(p, "a").open(1).write()
      put(aborted, key(0, "x"), "2")
      preview(aborted)
      assert(p.preview.nonEmpty)
      aborted.abort()
      assert(p.preview.isEmpty)
      val zombie = previewing(p, "a").open(1).write()
      put(zombie, key(0, "x"), "3")
      preview(zombie)
      assert(p.preview.nonEmpty)
      val newer = previewing(p, "b").open(1).write()
      put(newer, key(0, "x"), "4")
      assert(p.preview.isEmpty)
      put(zombie, key(0, "x"), "5")
      preview(zombie)
      assert(p.preview.isEmpty && zombie.preview.get.isOver)
      preview(newer)
      assert(p.preview.get.over(Map.empty) == all(newer))
    }
  }

  test("a later attempt of the run replaces the preview of an earlier one, which sets no more") {
    withPartition { p =>
      val store = previewing(p, "a")
      val first = store.open(0).write()
      put(first, key(0, "x"), "1")
      preview(first)
      val second = store.open(0).write()
      put(second, key(0, "y"), "2")
      preview(second)
      assert(p.preview.get.over(Map.empty) == all(second))
      put(first, key(0, "z"), "3")
      preview(first)
      assert(first.preview.get.isOver)
      assert(p.preview.get.over(Map.empty) == all(second))
    }
  }

  test("what a fail-over has lost is sent again") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      (0 until 5).foreach { i =>
        put(session, key(0, s"k$i"), i.toString)
        preview(session)
      }
      p.keys.filter(_.startsWith("u:")).foreach(ident =>
        p.raw.del(org.redisstate.core.ids.Keys.segment(p.id, ident)))
      p.raw.hdel(org.redisstate.core.ids.Keys.meta(p.id), "u")
      put(session, key(0, "last"), "1")
      preview(session)
      assert(p.preview.get.over(Map.empty) == all(session))
      assert(p.preview.get.slices.size == 1)
    }
  }

  test("a version that is written as a whole has no preview") {
    withPartition { p =>
      val session = previewing(p, "a").openEmpty(3).write()
      assert(session.preview.isEmpty)
    }
  }

  test("slices stay few however many previews there are") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      (0 until 300).foreach { i =>
        put(session, key(0, s"k${i % 90}"), i.toString)
        preview(session)
      }
      assert(p.preview.get.slices.size <= 24)
      assert(p.preview.get.over(Map.empty) == all(session))
    }
  }

  (1 to 12).foreach { seed =>
    test(s"any changes of any families are shown as they are (seed $seed)") {
      withPartition(p => anyChanges(p, new Random(seed)))
    }
  }

  private def anyChanges(p: TestPartition, random: Random): Unit = {
    val store = previewing(p, "a")
    var below = Map.empty[String, String]
    (0 until 3).foreach { version =>
      val session = store.open(version.toLong).write()
      if (version == 0) define(session)
      (0 until 200).foreach { n =>
        change(session, random, n)
        if (random.nextInt(15) == 0) {
          preview(session)
          p.preview.foreach(found => assert(found.over(below) == all(session)))
        }
      }
      preview(session)
      assert(p.preview.get.over(below) == all(session))
      session.commit()
      below = Families.flatMap(family => rows(store.open(version + 1L).iterator(family.id))).toMap
    }
  }

  private def change(session: WriteSession, random: Random, n: Int): Unit = {
    val name = s"k${random.nextInt(40)}"
    random.nextInt(20) match {
      case 0 =>
        val family = Seq(0, 2, 3)(random.nextInt(3))
        val from = s"k${random.nextInt(40)}".getBytes("UTF-8")
        session.deleteRange(family, Some(from), None)
      case 1 => rows(session.iterator(Seq(0, 2, 3)(random.nextInt(3)))): Unit
      case 2 =>
        // Large enough to be staged now and then.
        put(session, key(0, name), "v" * (1 << 20))
      case i if i < 7 =>
        val gone = key(Seq(0, 2, 3)(random.nextInt(3)), name)
        session.remove(gone, gone.length)
      case i if i < 12 => append(session, key(2, name), n.toString)
      case i if i < 16 => put(session, key(3, name), n.toString)
      case _ => put(session, key(0, name), n.toString)
    }
  }

  test("changes that are taken while others are made are neither lost nor torn") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      val thread = new Thread(() => while (!session.preview.get.isOver) preview(session))
      thread.start()
      (0 until 200000).foreach(i => put(session, key(0, s"k${i % 5000}"), i.toString))
      val expected = all(session)
      val deadline = System.nanoTime() + 60L * 1000 * 1000 * 1000
      while (!p.preview.exists(_.over(Map.empty) == expected)) {
        assert(System.nanoTime() < deadline, "the last changes never came")
      }
      session.abort()
      thread.join()
      assert(p.preview.isEmpty)
    }
  }

  test("previews come by themselves") {
    withPartition { p =>
      val session = p.store("a", previewEveryMs = Some(50L)).open(0).write()
      put(session, key(0, "x"), "1")
      val deadline = System.nanoTime() + 60L * 1000 * 1000 * 1000
      while (p.preview.isEmpty) assert(System.nanoTime() < deadline, "there was no preview")
      assert(p.preview.get.over(Map.empty) == all(session))
      session.abort()
    }
  }

  test("what waits for the next preview counts") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      define(session)
      val writer = session.preview.get
      append(session, key(2, "x"), "v" * (1 << 20))
      assert(writer.heldBytes > (1L << 20))
      // The write set merges layers between scans, and does not have their bytes any more.
      (0 until 10).foreach { _ =>
        put(session, key(3, "x"), "v" * (1 << 20))
        rows(session.rangeScan(3, None, None))
      }
      assert(writer.heldBytes > (10L << 20) && writer.heldBytes < (12L << 20))
      preview(session)
      assert(p.preview.get.over(Map.empty) == all(session))
      session.commit()
    }
  }

  test("a trace from which nobody takes ends, and holds nothing") {
    val layer = new Layer(16)
    def begun = new ChangeTrace(layer, Families, isTableNew = true, bytesMax = 1000)
    val value = new Array[Byte](600)
    val (lists, list) = (begun, key(2, "x"))
    def append(): Unit = lists.appendToList(1, list, list.length, value, value.length)
    append()
    assert(lists.heldBytes > 600 && !lists.isOver)
    append()
    assert(lists.isOver && lists.heldBytes == 0)
    append()
    assert(lists.heldBytes == 0 && lists.take().isEmpty)
    val (trace, name) = (begun, key(0, "x"))
    def change(in: Layer, next: Layer, isKept: Boolean): Unit = {
      in.put(1, name, 0, name.length, value, 0, value.length)
      trace.note(in.lastEntry)
      trace.follow(next, isKept)
    }
    val others = Seq.fill(4)(new Layer(16))
    change(layer, others.head, isKept = true)
    assert(trace.heldBytes == 0)
    change(others.head, others(1), isKept = false)
    assert(trace.heldBytes > 600 && !trace.isOver)
    change(others(1), others(2), isKept = false)
    assert(trace.isOver && trace.heldBytes == 0)
    change(others(2), others(3), isKept = false)
    assert(trace.heldBytes == 0 && trace.take().isEmpty)
  }

  /** Changes a row of a traced layer, whose key and hash are from a number. */
  private def change(trace: ChangeTrace, layer: Layer, n: Int, value: Array[Byte]): Unit = {
    val name = key(0, n.toString)
    layer.put(n, name, 0, name.length, value, 0, value.length)
    trace.note(layer.lastEntry)
  }

  test("of many changes a trace hands out the oldest, over layers and batches") {
    var layer = new Layer(16)
    val trace = new ChangeTrace(layer, Families, isTableNew = true)
    val value = new Array[Byte](10)
    (0 until 100000).foreach { n =>
      change(trace, layer, n, value)
      if (n % 30000 == 29999) {
        layer = new Layer(16)
        trace.follow(layer, isKept = n > 50000)
      }
    }
    val waiting = trace.heldBytes
    val taken = Seq(1L, 29999L, 20000L, 40000L).map { most =>
      val changes = trace.take(most)
      assert(changes.entries == most && changes.layer.rows == most)
      changes.layer
    } :+ trace.take(99999).layer
    assert(waiting > 0 && trace.heldBytes == 0 && trace.take(1).isEmpty)
    assert(taken.map(_.rows).sum == 100000)
    (0 until 100000).foreach { n =>
      val name = key(0, n.toString)
      val at = if (n < 1) 0 else if (n < 30000) 1 else if (n < 50000) 2 else if (n < 90000) 3 else 4
      assert(taken(at).find(n, name, 0, name.length) >= 0)
    }
  }

  test("a removed range and lists are handed out with all that waits before them") {
    val layer = new Layer(16)
    val trace = new ChangeTrace(layer, Families, isTableNew = true)
    (0 until 10).foreach(change(trace, layer, _, Array(1)))
    trace.appendToList(1, key(2, "x"), key(2, "x").length, new Array[Byte](8), 8)
    assert(trace.take(3).entries == 10)
    (0 until 10).foreach(_ => trace.note(layer.lastEntry))
    trace.removeRange(Tombstone(0, None, None), new Layer(16))
    val changes = trace.take(3)
    assert(changes.entries == 10 && changes.tombstones.size == 1)
  }

  test("rows that wait count once the write set drops their layer") {
    val layer = new Layer(16)
    val trace = new ChangeTrace(layer, Families, isTableNew = true)
    val value = new Array[Byte](1000)
    def note(numbers: Range): Unit = numbers.foreach(change(trace, layer, _, value))
    note(0 until 100)
    assert(trace.take(10).layer.rows == 10 && trace.heldBytes == 0)
    note(100 until 200)
    assert(trace.take(10).layer.rows == 10 && trace.heldBytes == 0)
    trace.follow(new Layer(16), isKept = false)
    assert(trace.heldBytes == layer.usedBytes)
    val taken = trace.take(100)
    assert(taken.layer.rows == 100 && trace.heldBytes == layer.usedBytes)
    assert(trace.take().layer.rows == 80 && trace.heldBytes == 0)
  }

  for (most <- Seq(3L, 10L))
    test(s"a list that changes after $most of 10 rows were taken is not among them") {
      val layer = new Layer(16)
      val trace = new ChangeTrace(layer, Families, isTableNew = true)
      (0 until 10).foreach(change(trace, layer, _, Array(1)))
      val taken = trace.take(most)
      trace.appendToList(1, key(2, "x"), key(2, "x").length, new Array[Byte](8), 8)
      assert(taken.layer.rows == most)
      assert(trace.take().layer.rows == 10 - most + 1)
    }

  test("a preview of a batch that changes too much has the oldest changes") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      (0 until 500000).foreach(n => put(session, key(0, n.toString), n.toString))
      preview(session)
      val numbers = p.preview.get.over(Map.empty).values.map(Vectors.fromHex).map {
        new String(_, UTF_8).toInt
      }
      assert(numbers.nonEmpty && numbers.size < 500000)
      assert(numbers.max == numbers.size - 1)
      session.commit()
      assert(p.preview.isEmpty)
    }
  }

  test("previews that were given up hold nothing of the batch that goes on") {
    withPartition { p =>
      val store = previewing(p, "a")
      val first = store.open(0).write()
      define(first)
      put(first, key(0, "x"), "1")
      preview(first)
      val second = store.open(0).write()
      put(second, key(0, "y"), "2")
      preview(second)
      put(first, key(0, "z"), "3")
      preview(first)
      val writer = first.preview.get
      assert(writer.isOver && writer.heldBytes == 0)
      append(first, key(2, "x"), "v" * (1 << 20))
      assert(writer.heldBytes == 0)
    }
  }

  test("a store that cannot be read fast enough ends its previews, not its batch") {
    withPartition { p =>
      val session = previewing(p, "a").open(0).write()
      (0L to ChangeTrace.EntriesMax).foreach(_ => put(session, key(0, "x"), "1"))
      preview(session)
      assert(session.preview.get.isOver && p.preview.isEmpty)
      session.commit()
    }
  }
}

private object PreviewSuite {
  val Families: Seq[Family] =
    Seq(TestPartition.Default, TestPartition.Lists, TestPartition.Ordered)
}
