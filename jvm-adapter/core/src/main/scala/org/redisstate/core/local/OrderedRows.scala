package org.redisstate.core.local

import scala.collection.mutable

import org.redisstate.core.format.RowBlock

/**
 * The rows of an ordered family in a base: blocks that follow one another in key order, none of
 * them empty. Immutable; a changed one shares the blocks that no change met.
 */
private[core] final class OrderedRows private (val blocks: Array[RowBlock]) {
  import OrderedRows._

  def isEmpty: Boolean = blocks.isEmpty
  def rows: Long = blocks.iterator.map(_.count.toLong).sum
  def memoryBytes: Long = blocks.iterator.map(_.memoryBytes).sum

  /** The block that a key belongs to: the last that begins at or before it, else the first. */
  def blockOf(key: Array[Byte], offset: Int, length: Int): Int = {
    var low = 0
    var high = blocks.length - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      val rows = blocks(middle)
      val at = rows.keyOffset(0)
      val order = java.util.Arrays.compareUnsigned(
        rows.bytes,
        at,
        at + rows.keyLength(0),
        key,
        offset,
        offset + length)
      if (order <= 0) low = middle else high = middle - 1
    }
    low
  }

  /** @param changes rows and removals of newer versions, in key order */
  def merged(changes: RowBlock, layer: Layer): OrderedRows = {
    val kept =
      if (layer.clearsNothing) blocks
      else blocks.map(Content.withoutCleared(_, layer)).filter(_.count > 0)
    val all = new Collector
    if (kept.isEmpty) all.add(RowBlock.merge(RowBlock.Empty, changes, resolve = true))
    var from = 0
    kept.indices.foreach { b =>
      val until = if (b + 1 < kept.length) placeOf(changes, kept(b + 1)) else changes.count
      all.add(
        if (from == until) kept(b)
        else RowBlock.merge(kept(b), part(changes, from, until), resolve = true))
      from = until
    }
    all.result
  }

  /** All of them as one block. */
  def whole: RowBlock = {
    val all = new RowBlock.Builder(1024)
    blocks.foreach(addAll(all, _))
    all.result()
  }
}

private[core] object OrderedRows {
  val Empty: OrderedRows = new OrderedRows(Array.empty)
  private val BytesMax = 16 << 10

  /** None when the blocks do not begin with these keys, or overlap. */
  def apply(firstKeys: Seq[Array[Byte]], blocks: Array[RowBlock]): Option[OrderedRows] = {
    val fit = firstKeys.length == blocks.length && firstKeys.indices.forall { i =>
      val rows = blocks(i)
      rows.count > 0 && compareKey(rows, 0, firstKeys(i)) == 0 &&
      (i + 1 == blocks.length || compareKey(rows, rows.count - 1, firstKeys(i + 1)) < 0)
    }
    if (fit) Some(new OrderedRows(blocks)) else None
  }

  private def compareKey(rows: RowBlock, i: Int, key: Array[Byte]): Int = {
    val at = rows.keyOffset(i)
    java.util.Arrays
      .compareUnsigned(rows.bytes, at, at + rows.keyLength(i), key, 0, key.length)
  }

  /** Where the first key of `next` belongs in `changes`. */
  private def placeOf(changes: RowBlock, next: RowBlock): Int = {
    val found = changes.find(next.bytes, next.keyOffset(0), next.keyLength(0))
    if (found >= 0) found else -1 - found
  }

  private def part(rows: RowBlock, from: Int, until: Int): RowBlock = {
    val some = new RowBlock.Builder(1024)
    (from until until).foreach(some.addFrom(rows, _))
    some.result()
  }

  private def addAll(to: RowBlock.Builder, rows: RowBlock): Unit =
    (0 until rows.count).foreach(to.addFrom(rows, _))

  /** Cuts large blocks and joins small neighbours. */
  private final class Collector {
    private val blocks = mutable.ArrayBuffer.empty[RowBlock]

    def add(rows: RowBlock): Unit =
      if (rows.bytes.length > 2 * BytesMax) cut(rows)
      else if (rows.count > 0) {
        if (blocks.nonEmpty && blocks.last.bytes.length + rows.bytes.length < BytesMax / 2) {
          val both = new RowBlock.Builder(BytesMax)
          addAll(both, blocks.last)
          addAll(both, rows)
          blocks(blocks.length - 1) = both.result()
        } else blocks += rows
        ()
      }

    private def cut(rows: RowBlock): Unit = {
      val piece = new RowBlock.Builder(BytesMax)
      (0 until rows.count).foreach { i =>
        piece.addFrom(rows, i)
        if (piece.rawBytes >= BytesMax || i == rows.count - 1) {
          blocks += piece.result()
          piece.reset()
        }
      }
    }

    def result: OrderedRows = new OrderedRows(blocks.toArray)
  }
}
