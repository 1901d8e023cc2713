package org.redisstate.core.local

import scala.collection.mutable

import org.redisstate.core.format.RowBlock

/**
 * The rows of an ordered family in a base: blocks that follow one another in key order, none of
 * them empty, each read from Redis when it is touched. Immutable; a changed one shares the blocks
 * that no change met.
 */
private[core] final class OrderedRows private (slots: Array[OrderedSlot]) {
  import OrderedRows._

  /** Of all blocks, once they are here; -1 before. */
  @volatile private var wholeBytes = -1L

  def isEmpty: Boolean = slots.isEmpty
  def size: Int = slots.length
  def isWhole: Boolean = wholeBytes >= 0
  def block(i: Int): RowBlock = slots(i).rows
  def memoryBytes: Long = if (wholeBytes >= 0) wholeBytes else sumBytes()

  /** Kept once all blocks are here. */
  private def sumBytes(): Long = {
    val each = slots.map(_.memoryBytes)
    val sum = each.sum
    if (!each.contains(0L)) wholeBytes = sum
    sum
  }

  /** Brings every block in; stops when `cancelled`. */
  def loadAll(cancelled: () => Boolean): Unit =
    if (wholeBytes < 0) {
      var i = 0
      while (i < slots.length && !cancelled()) {
        slots(i).rows
        i += 1
      }
      sumBytes()
      ()
    }

  /** The block that a key belongs to: the last that begins at or before it, else the first. */
  def blockOf(key: Array[Byte], offset: Int, length: Int): Int = {
    var low = 0
    var high = slots.length - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      val first = slots(middle).firstKey
      val order = java.util.Arrays.compareUnsigned(
        first,
        0,
        first.length,
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
      if (layer.clearsNothing) slots
      else
        slots.map(slot => Content.withoutCleared(slot.rows, layer)).filter(_.count > 0).map(
          OrderedSlot.of)
    val all = new Collector
    if (kept.isEmpty) all.add(RowBlock.merge(RowBlock.Empty, changes, resolve = true))
    var from = 0
    kept.indices.foreach { b =>
      val until = if (b + 1 < kept.length) placeOf(changes, kept(b + 1)) else changes.count
      if (from == until) all.keep(kept(b))
      else all.add(RowBlock.merge(kept(b).rows, part(changes, from, until), resolve = true))
      from = until
    }
    all.result
  }

  /** All of them as one block. */
  def whole: RowBlock = {
    val all = new RowBlock.Builder(1024)
    slots.foreach(slot => addAll(all, slot.rows))
    all.result()
  }
}

private[core] object OrderedRows {
  val Empty: OrderedRows = new OrderedRows(Array.empty)
  private val BytesMax = 16 << 10

  /** Blocks of a segment, none of them here yet. */
  def remote(firstKeys: Seq[Array[Byte]], source: OrderedSource): OrderedRows =
    new OrderedRows(new OrderedRun(firstKeys, source).slots)

  /** Whether a block begins with a key, and ends below the next block's. */
  def fits(rows: RowBlock, firstKey: Array[Byte], next: Option[Array[Byte]]): Boolean =
    rows.count > 0 && compareKey(rows, 0, firstKey) == 0 &&
      next.forall(compareKey(rows, rows.count - 1, _) < 0)

  private def compareKey(rows: RowBlock, i: Int, key: Array[Byte]): Int = {
    val at = rows.keyOffset(i)
    java.util.Arrays
      .compareUnsigned(rows.bytes, at, at + rows.keyLength(i), key, 0, key.length)
  }

  /** Where the first key of `next` belongs in `changes`. */
  private def placeOf(changes: RowBlock, next: OrderedSlot): Int = {
    val found = changes.find(next.firstKey, 0, next.firstKey.length)
    if (found >= 0) found else -1 - found
  }

  private def part(rows: RowBlock, from: Int, until: Int): RowBlock = {
    val some = new RowBlock.Builder(1024)
    (from until until).foreach(some.addFrom(rows, _))
    some.result()
  }

  private def addAll(to: RowBlock.Builder, rows: RowBlock): Unit =
    (0 until rows.count).foreach(to.addFrom(rows, _))

  /** Cuts large blocks and joins small neighbours; what did not change stays as it is. */
  private final class Collector {
    private val slots = mutable.ArrayBuffer.empty[OrderedSlot]

    /** Whether the last block came by `add`. */
    private var fresh = false

    def keep(slot: OrderedSlot): Unit = {
      slots += slot
      fresh = false
    }

    def add(rows: RowBlock): Unit =
      if (rows.bytes.length > 2 * BytesMax) cut(rows)
      else if (rows.count > 0) {
        if (fresh && isSmall(slots.last.rows, rows)) {
          val both = new RowBlock.Builder(BytesMax)
          addAll(both, slots.last.rows)
          addAll(both, rows)
          slots(slots.length - 1) = OrderedSlot.of(both.result())
        } else slots += OrderedSlot.of(rows)
        fresh = true
      }

    private def isSmall(one: RowBlock, other: RowBlock): Boolean =
      one.bytes.length + other.bytes.length < BytesMax / 2

    private def cut(rows: RowBlock): Unit = {
      val piece = new RowBlock.Builder(BytesMax)
      (0 until rows.count).foreach { i =>
        piece.addFrom(rows, i)
        if (piece.rawBytes >= BytesMax || i == rows.count - 1) {
          slots += OrderedSlot.of(piece.result())
          piece.reset()
        }
      }
      fresh = true
    }

    def result: OrderedRows = new OrderedRows(slots.toArray)
  }
}
