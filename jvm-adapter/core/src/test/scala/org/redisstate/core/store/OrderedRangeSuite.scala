package org.redisstate.core.store

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.{Family, FamilyKind, RowBlock, Segment, Tombstone}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local._
import org.redisstate.core.local.blocks.{OrderedRows, OrderedSource}
import org.redisstate.core.protocol.SegmentGone

/** Scans of ordered families whose blocks come from Redis under way. */
class OrderedRangeSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private val Rows = 300 * 128
  private def name(i: Int): String = f"t$i%06d"

  test("a scan goes on behind its last row when a segment was replaced under it") {
    val gone = Segment.parse("s:1:u", "w 1 1 1 1 1 0 h")
    val all = 0 until 200
    def block(i: Int): RowBlock = {
      val rows = new RowBlock.Builder(64)
      val k = key(3, name(i))
      rows.add(k, 0, k.length, k, 0, k.length)
      rows.result()
    }
    def content(until: Int): Content = {
      val source: OrderedSource = (from, to) =>
        if (from >= until) throw new SegmentGone(gone) else (from until to).map(block).toArray
      val rows = OrderedRows.remote(all.map(i => key(3, name(i))), source)
      new Content(Base.remote(1, (_, _) => Array(RowBlock.Empty), Map(3 -> rows)), Nil)
    }
    var reloads = 0
    val version = new LocalVersion(
      Pin(1, "u"),
      LiveRows.None,
      FamilyTable(Seq(Default, Ordered), 3),
      content(64),
      History.Empty,
      _ => {
        reloads += 1
        if (reloads == 1) content(128) else content(1000)
      })
    val found = rows(version.rangeScan(Tombstone(3, None, None), Nil, version.hashOf))
    assert(found.map(_._1) == all.map(i => org.redisstate.core.format.Vectors.hex(key(3, name(i)))))
    assert(reloads == 2)
  }

  test("timers of a snapshot are opened without their blocks, and each scan is right") {
    val p = new TestPartition(server)
    try {
      val timers = Family(3, "ordered", FamilyKind.Range, Seq(1), "", "", false, internal = true)
      val store = p.store("a")
      val session = store.open(0).write()
      session.defineFamily(timers)
      (0 until Rows).foreach(i => put(session, key(3, name(i)), "v"))
      session.commit()
      store.open(1)
      store.requestSnapshot()
      assert(store.snapshotIfDue())
      val other = p.store("a").open(1)
      val key3, value = new Slice
      val first = other.rangeScan(3, None, None)
      assert(first.next(key3, value) && text(key3).endsWith(name(0)))
      val middle = name(Rows / 2).getBytes("UTF-8")
      val second = other.rangeScan(3, Some(middle), None)
      assert(second.next(key3, value) && text(key3).endsWith(name(Rows / 2)))
      assert(rows(other.iterator(3)).length == Rows)
      val more = other.write()
      (0 until Rows by 3).foreach(i => more.remove(key(3, name(i)), 9))
      assert(more.numInternalKeys == Rows - Rows / 3 && more.numKeys == 0)
      assert(rows(more.rangeScan(3, None, None)).length == Rows - Rows / 3)
      more.commit()
      assert(rows(p.store("a").open(2).iterator(3)).length == Rows - Rows / 3)
    } finally p.close()
  }
}
