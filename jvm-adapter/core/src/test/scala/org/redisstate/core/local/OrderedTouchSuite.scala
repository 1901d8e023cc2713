package org.redisstate.core.local

import java.nio.ByteBuffer

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.{Family, FamilyKind, RowBlock, Tombstone}
import org.redisstate.core.local.blocks.{OrderedRows, OrderedRun, OrderedSource}

/** Rows that a scan touches in an ordered family of a million rows: counted, not timed. */
class OrderedTouchSuite extends AnyFunSuite {
  import OrderedTouchSuite._

  private val hashOf =
    KeyHash.of(Seq(Family(3, "timers", FamilyKind.Range, Seq(0), "", "", false, true)))

  private def loaded(source: Counting): Content = {
    val firstKeys = (0 until Blocks).map(b => key(b * BlockRows))
    val rows = OrderedRows.remote(firstKeys, source)
    new Content(Base.remote(1, (_, _) => Array(RowBlock.Empty), Map(3 -> rows)), Nil)
  }

  /** Returns the keys of the first `count` rows of a scan. */
  private def take(content: Content, range: Tombstone, count: Int): Seq[Int] = {
    val rows = content.rangeScan(range, hashOf)
    val key, value = new Slice
    Iterator.continually(rows.next(key, value)).take(count).takeWhile(identity).map(_ =>
      ByteBuffer.wrap(key.array).getInt(key.offset + 2)).toSeq
  }

  private def changes(keys: Seq[Int]): Layer = {
    val layer = new Layer(16)
    keys.foreach { n =>
      val k = key(n)
      val hash = hashOf(k, 0, k.length)
      if (n % 2 == 0) layer.remove(hash, k, 0, k.length)
      else layer.put(hash, k, 0, k.length, k, 0, k.length)
    }
    layer.trimmed
  }

  private def removals(keys: Seq[Int]): Layer = {
    val layer = new Layer(16)
    keys.foreach { n =>
      val k = key(n)
      layer.remove(hashOf(k, 0, k.length), k, 0, k.length)
    }
    layer.trimmed
  }

  test("the first rows of loaded content touch one round trip's blocks") {
    val source = new Counting
    val content = loaded(source)
    for (_ <- 1 to 3) assert(take(content, All, 100) == (0 until 100))
    assert(source.blocks == OrderedRun.ChunkBlocks)
    assert(take(content, All, 100 + OrderedRun.ChunkBlocks * BlockRows).length == 8292)
    assert(source.blocks == 2 * OrderedRun.ChunkBlocks)
  }

  test("a range and a key far inside touch no more") {
    val source = new Counting
    val content = loaded(source)
    val from = 700000
    assert(take(
      content,
      Tombstone(3, Some(key(from).drop(2)), None),
      100) == (from until from + 100))
    assert(source.blocks == OrderedRun.ChunkBlocks)
    val k = key(from + 1)
    assert(content.contains(hashOf(k, 0, k.length), k, 0, k.length))
    assert(take(content, Tombstone(3, None, Some(key(0).drop(2))), 100).isEmpty)
    assert(source.blocks <= 2 * OrderedRun.ChunkBlocks)
  }

  test("rows that commits changed are brought into order once, whoever scans") {
    val source = new Counting
    val layers = (0 until 8).map(n => changes((n until 8000 by 8).map(_ * 3))).toList
    val content = loaded(source).over(layers)
    val removed = (0 until 8000 by 2).map(_ * 3).toSet
    val wanted = Iterator.from(0).filterNot(removed).take(100).toSeq
    for (_ <- 1 to 10) assert(take(content, All, 100) == wanted)
    assert(layers.map(_.sortedCount).sum == 8000)
    assert(source.blocks == OrderedRun.ChunkBlocks)
    val more = content.over(List(changes(Seq(1))))
    assert(take(more, All, 100) == wanted)
    assert(layers.map(_.sortedCount).sum == 8000)
  }

  test("rows that were removed from the front are passed once") {
    val source = new Counting
    var content = loaded(source)
    for (batch <- 0 until 40) {
      val scan = content.rangeScan(All, hashOf).asInstanceOf[OrderedScan]
      val key, value = new Slice
      assert(scan.next(key, value))
      assert(ByteBuffer.wrap(key.array).getInt(key.offset + 2) == 100 * batch)
      assert(scan.rowsPassed <= 100)
      content = content.over(List(removals(100 * batch until 100 * (batch + 1))))
      if (batch % 7 == 6) content = content.merged(LayerSizes.Default.mergedMax)
    }
    assert(take(content.over(List(changes(Seq(5)))), All, 1) == Seq(5))
    assert(take(content, All, 1) == Seq(4000))
  }

  test("folding changes into the base touches the blocks that they meet") {
    val source = new Counting
    val folded = Content.fold(loaded(source).over(List(changes(0 until 1000))), hashOf)
    assert(source.blocks == OrderedRun.ChunkBlocks)
    assert(folded.layers.isEmpty && take(folded, All, 100) == (1 until 200 by 2))
    assert(source.blocks == OrderedRun.ChunkBlocks)
    folded.base.loadAll(() => false)
    assert(source.blocks == Blocks)
    assert(take(folded, All, Rows).length == Rows - 500)
  }
}

private object OrderedTouchSuite {
  private val BlockRows = 128
  private val Blocks = 8192
  private val Rows = BlockRows * Blocks
  private val All = Tombstone(3, None, None)

  private def key(n: Int): Array[Byte] =
    ByteBuffer.allocate(6).put(0.toByte).put(3.toByte).putInt(n).array

  private final class Counting extends OrderedSource {
    var blocks = 0

    override def read(from: Int, until: Int): Array[RowBlock] = {
      blocks += until - from
      (from until until).map { b =>
        val rows = new RowBlock.Builder(4096)
        (0 until BlockRows).foreach { i =>
          val k = key(b * BlockRows + i)
          rows.add(k, 0, k.length, k, 0, k.length)
        }
        rows.result()
      }.toArray
    }
  }
}
