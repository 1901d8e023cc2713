package org.redisstate.core.local.blocks

import scala.collection.mutable

import org.redisstate.core.format.{RowBlock, RowMerge}

/**
 * Rows of an ordered family in a base: consecutive blocks in key order, each read from Redis at its
 * first use. Immutable; a changed copy shares the untouched blocks.
 */
private[core] final class OrderedRows private (slots: Array[OrderedSlot], room: Room) {
  import OrderedRows._

  @volatile private var counted = new Sum(-1, 0)

  /** Block at which the next sweep begins. */
  @volatile private var hand = 0

  def isEmpty: Boolean = slots.isEmpty
  def size: Int = slots.length
  def block(i: Int): RowBlock = slots(i).rows(room)
  def decodedBytes: Long = slots.iterator.map(_.decodedBytes).sum

  /** Summed again only when a block changed its form since. */
  def memoryBytes: Long = {
    val changes = OrderedSlot.Changes.get
    if (counted.changes != changes) counted = new Sum(changes, sumBytes)
    counted.bytes
  }

  private def sumBytes: Long = {
    var sum = 0L
    var i = 0
    while (i < slots.length) {
      sum += slots(i).memoryBytes
      i += 1
    }
    sum
  }

  /** Loads every block while there is room; stops when `cancelled`. @return whether all are here */
  def loadAll(cancelled: () => Boolean): Boolean =
    slots.forall(slot => slot.isHere || (!cancelled() && slot.fill(room)))

  /** Fills the slots with blocks that were read or written before. */
  def fill(blocks: Seq[RowBlock]): Unit =
    blocks.iterator.zip(slots.iterator).foreach { case (rows, slot) => slot.came(rows) }

  /** Compresses blocks, like `Base.compress`. */
  def compress(bytes: Long, everything: Boolean): Long = sweep(bytes)(_.compress(everything))

  /** Drops blocks that Redis has, like `Base.drop`. */
  def drop(bytes: Long): Long = sweep(bytes)(_.drop())

  private def sweep(bytes: Long)(visit: OrderedSlot => Unit): Long = {
    val from = hand
    var freed = 0L
    var visited = 0
    while (visited < slots.length && freed < bytes) {
      val slot = slots((from + visited) % slots.length)
      val before = slot.memoryBytes
      visit(slot)
      freed += before - slot.memoryBytes
      visited += 1
    }
    if (visited > 0) hand = (from + visited) % slots.length
    freed
  }

  /**
   * Returns the block that a key belongs to: the last one that begins at or before it, else the
   * first.
   */
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

  /**
   * @param changes rows and removals of newer versions, in key order
   * @param uncleared of a block the rows that newer versions do not clear; None if they clear none
   */
  def merged(changes: RowBlock, uncleared: Option[RowBlock => RowBlock]): OrderedRows = {
    val kept = uncleared.fold(slots) { left =>
      slots.map(slot => left(slot.rows(room))).filter(_.count > 0).map(OrderedSlot.of)
    }
    val all = new Collector(room)
    if (kept.isEmpty) all.add(RowMerge.merge(RowBlock.Empty, changes, resolve = true))
    var from = 0
    kept.indices.foreach { b =>
      val until = if (b + 1 < kept.length) placeOf(changes, kept(b + 1)) else changes.count
      if (from == until) all.keep(kept(b))
      else all.add(RowMerge.merge(kept(b).rows(room), part(changes, from, until), resolve = true))
      from = until
    }
    all.result
  }
}

private[core] object OrderedRows {
  val Empty: OrderedRows = new OrderedRows(Array.empty, Room.Unbounded)
  private val BytesMax = 16 << 10

  /** Bytes of all blocks after a number of changes. */
  private final class Sum(val changes: Long, val bytes: Long)

  /** Blocks of a segment, none of them here yet. */
  def remote(
      firstKeys: Seq[Array[Byte]],
      source: OrderedSource,
      room: Room = Room.Unbounded): OrderedRows =
    new OrderedRows(new OrderedRun(firstKeys, source).slots, room)

  /** Returns whether a block begins with a key, and ends below the next block's first key. */
  def fits(rows: RowBlock, firstKey: Array[Byte], next: Option[Array[Byte]]): Boolean =
    rows.count > 0 && compareKey(rows, 0, firstKey) == 0 &&
      next.forall(compareKey(rows, rows.count - 1, _) < 0)

  private def compareKey(rows: RowBlock, i: Int, key: Array[Byte]): Int = {
    val at = rows.keyOffset(i)
    java.util.Arrays
      .compareUnsigned(rows.bytes, at, at + rows.keyLength(i), key, 0, key.length)
  }

  /** Returns the position of the first key of `next` in `changes`. */
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
  private final class Collector(room: Room) {
    private val slots = mutable.ArrayBuffer.empty[OrderedSlot]

    /** True if the last block came from `add`. */
    private var fresh = false

    def keep(slot: OrderedSlot): Unit = {
      slots += slot
      fresh = false
    }

    def add(rows: RowBlock): Unit =
      if (rows.bytes.length > 2 * BytesMax) cut(rows)
      else if (rows.count > 0) {
        if (fresh && isSmall(slots.last.rows(room), rows)) {
          val both = new RowBlock.Builder(BytesMax)
          addAll(both, slots.last.rows(room))
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

    def result: OrderedRows = new OrderedRows(slots.toArray, room)
  }
}
