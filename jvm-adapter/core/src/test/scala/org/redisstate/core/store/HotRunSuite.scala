package org.redisstate.core.store

import scala.jdk.CollectionConverters._
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.ids.Keys
import org.redisstate.core.local.{LayerSizes, Slice}

/** Hot runs of a bounded partition whose base is in a file (docs/format.md, section 18). */
class HotRunSuite extends AnyFunSuite with FilesFixture {
  import HotRunSuite._

  test("while few rows change the base waits, and Redis has one hot run") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      val snapshots = scene.store.counters.snapshots.get
      (1 to 20).foreach(_ => scene.batch(3, HotRows))
      assert(scene.store.counters.snapshots.get == snapshots)
      assert(runs(p).size == 1 && scene.peak <= Share)
      scene.check()
    }
  }

  test("a new executor reads hot rows without the base, and is told when the next base is due") {
    onServer(retained = 5) { (p, files) =>
      val scene = new Scene(p)
      (1 to 6).foreach(_ => scene.batch(3, HotRows))
      val fresh = scene.newStore()
      val before = files.reads.size
      val opened = fresh.open(scene.at)
      val atOpen = files.reads.size
      assert(atOpen - before <= 2)
      val out = new Slice
      (0 until HotRows).foreach { row =>
        val key = TestPartition.key(0, s"k$row")
        assert(opened.get(key, key.length, out) && TestPartition.text(out) == scene.rows(s"k$row"))
      }
      // The background reads the base ahead; no row waits for it.
      assert(fresh.counters.missNs.get == 0)
      val history = fresh.cache.versions.head.history
      assert(history.hotRun.nonEmpty && !history.isDue)
      scene.check()
    }
  }

  test("a hot run that is lost, or whose base is gone, is no loss") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      (1 to 4).foreach(_ => scene.batch(3, HotRows))
      val (field, value) = runs(p).head
      val version = field.split(':')(1)
      p.raw.del(Keys.segment(p.id, s"r:$version:${value.split(' ')(2)}"))
      scene.check()
      p.raw.hset(Keys.meta(p.id), field, value.replaceFirst("^\\d+ \\S+", s"1 ${"f" * 32}"))
      scene.check()
    }
  }

  Seq("block", "header", "entry", "key").foreach { what =>
    test(s"a hot run whose $what is damaged is no loss, and the next merge replaces it") {
      onServer(retained = 5) { (p, _) =>
        val scene = new Scene(p)
        (1 to 4).foreach(_ => scene.batch(3, HotRows))
        val (field, value) = runs(p).head
        val key = Keys.segment(p.id, s"r:${field.split(':')(1)}:${value.split(' ')(2)}").getBytes
        if (what == "entry") p.raw.hset(Keys.meta(p.id), field, s"$value what")
        else if (what == "key") p.raw.hdel(key, "0".getBytes)
        else
          p.raw.hgetAll(key).asScala.foreach { case (name, block) =>
            if ((new String(name) == "h") == (what == "header"))
              p.raw.hset(key, name, block.init :+ (block.last ^ 1).toByte)
          }
        scene.check()
        (1 to 12).foreach(_ => scene.batch(3, HotRows))
        assert(runs(p).size == 1 && !runs(p).contains(field))
        scene.check()
      }
    }
  }

  test("a damaged hot run that is read bucket by bucket is no loss") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      (1 to 4).foreach(_ => scene.batch(3, HotRows))
      val (field, value) = runs(p).head
      val key = Keys.segment(p.id, s"r:${field.split(':')(1)}:${value.split(' ')(2)}").getBytes
      val block = p.raw.hget(key, "0".getBytes)
      p.raw.hset(key, "0".getBytes, block.init :+ (block.last ^ 1).toByte)
      scene.check(LayerSizes(1, 1))
    }
  }

  test("too many different rows make no hot run, and the base is written anew") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      val snapshots = scene.store.counters.snapshots.get
      (1 to 8).foreach(_ => scene.batch(3, BaseRows))
      assert(scene.store.counters.snapshots.get > snapshots)
      scene.check()
    }
  }

  test("maintenance spares a hot run where nothing else can leave") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      (1 to 4).foreach(_ => scene.batch(3, HotRows))
      val files = scene.store.client.files
      while (files.makeRoom(Share, endsRuns = false).nonEmpty) {}
      assert(runs(p).size == 1)
      assert(files.keepRoom(1000) == 0 && runs(p).size == 1)
    }
  }

  test("a damaged delta makes no hot run, and does not end maintenance") {
    onServer(retained = 5) { (p, _) =>
      val scene = new Scene(p)
      (1 to 5).foreach(_ => scene.commit(0 until HotRows))
      val manifest = p.raw.hgetAll(Keys.meta(p.id)).asScala
      val field = manifest.keys.find(_.startsWith(s"d:${scene.at - 2}:")).get
      val key = Keys.segment(p.id, field).getBytes
      val block = p.raw.hget(key, "0".getBytes)
      p.raw.hset(key, "0".getBytes, block.init :+ (block.last ^ 1).toByte)
      scene.store.open(scene.at)
      assert(!scene.store.snapshotIfDue())
      assert(runs(p).isEmpty)
    }
  }

  private def runs(p: TestPartition): Map[String, String] =
    p.raw.hgetAll(Keys.meta(p.id)).asScala.toMap.filter(_._1.startsWith("r:"))
}

private object HotRunSuite {
  private val Share = 400000L
  private val BaseRows = 4000
  private val HotRows = 40

  /** A query whose base is in a file. */
  private final class Scene(p: TestPartition) {
    private val dice = new Random(3)
    var rows: Map[String, String] = Map.empty
    var at = 0L
    var peak = 0L
    private var stores = 0
    val store: PartitionVersions = newStore()
    (0 until 10).foreach(part => commit((0 until BaseRows / 10).map(_ + part * BaseRows / 10)))
    store.open(at)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    store.client.files.keepRoom(Share)

    def newStore(sizes: LayerSizes = LayerSizes.Default): PartitionVersions = {
      stores += 1
      val made = p.store(if (stores == 1) "run" else "reader", sizes = sizes)
      made.client.bindTo(Share)
      made
    }

    def commit(changed: Seq[Int]): Unit = {
      val session = store.open(at).write()
      changed.foreach { row =>
        val text = dice.alphanumeric.take(200).mkString
        TestPartition.put(session, TestPartition.key(0, s"k$row"), text)
        rows += s"k$row" -> text
      }
      at = session.commit().version
    }

    /** Some commits of a hundred changes, then maintenance. */
    def batch(times: Int, of: Int): Unit = {
      (1 to times).foreach(_ => commit(Seq.fill(100)(dice.nextInt(of))))
      store.open(at)
      store.snapshotIfDue()
      store.retain()
      store.client.files.keepRoom(Share)
      peak = math.max(peak, p.meta("h").split(' ')(1).toLong)
    }

    /** Compares all rows, on an executor that has nothing cached. */
    def check(sizes: LayerSizes = LayerSizes.Default): Unit = {
      val reader = newStore(sizes)
      val opened = reader.open(at)
      val key, value = new Slice
      val iterator = opened.iterator(0)
      var found = Map.empty[String, String]
      while (iterator.next(key, value))
        found += TestPartition.text(key).drop(2) -> TestPartition.text(value)
      assert(found == rows)
      reader.close()
    }
  }
}
