package org.redisstate.core.local

import org.redisstate.core.format.{RowBlock, Tombstone}
import org.redisstate.core.local.blocks.OrderedRows

/**
 * Rows of an ordered family within a range, in key order: merges the sorted rows of the layers and
 * of the base while they are read. Of equal keys the newest layer decides.
 *
 * @param front a stored key below which the family has no row; null if none is known
 * @param foundFront called with such a key, if the scan passed removed rows
 */
private[local] final class OrderedScan(
    layers: List[Layer],
    base: Base,
    range: Tombstone,
    front: Array[Byte],
    foundFront: Array[Byte] => Unit)
    extends RowIterator {
  import OrderedScan._

  private val asked = familyBytes(range.family) ++ range.from.getOrElse(Array.empty[Byte])
  private val from = if (front != null && isBelow(asked, front)) front else asked

  /** True if the family has no row below the position of this scan. */
  private var isFirst = range.from.isEmpty || (from eq front)
  private var passed = 0

  /** Number of removed rows that the scan passed. */
  private[local] def rowsPassed: Int = passed

  /** Layers from the newest on, each with those below it. */
  private val tails = Iterator.iterate(layers)(_.tail).takeWhile(_.nonEmpty).toArray
  private val places: Array[Cursor] =
    tails.map(tail => new LayerCursor(tail.head, range.family, from): Cursor) :+
      new BaseCursor(base.ordered(range.family), from)

  override def next(key: Slice, value: Slice): Boolean = {
    while (true) {
      val newest = least()
      if (newest < 0) {
        noteFront(familyBytes(range.family + 1))
        return false
      }
      val place = places(newest)
      if (!range.covers(place.bytes, place.offset, place.length)) {
        noteFront(place.key)
        return false
      }
      val shown = isShown(newest, place)
      if (shown) {
        noteFront(place.key)
        key.set(place.bytes, place.offset, place.length)
        place match {
          case layer: LayerCursor => Layers.value(tails(newest), base, layer.entry, value)
          case rows: BaseCursor => rows.value(value)
        }
      }
      pass(newest)
      if (shown) return true
      passed += 1
    }
    throw new IllegalStateException
  }

  /** The next scan begins where this one found the first row. */
  private def noteFront(key: => Array[Byte]): Unit =
    if (isFirst) {
      isFirst = false
      if (passed >= PassedMin) foundFront(key)
    }

  /** Returns the cursor with the smallest key, the newest of equal ones; -1 at the end. */
  private def least(): Int = {
    var best = -1
    var i = 0
    while (i < places.length) {
      if (!places(i).atEnd && (best < 0 || compare(places(i), places(best)) < 0)) best = i
      i += 1
    }
    best
  }

  private def isShown(at: Int, place: Cursor): Boolean = {
    var shown = !place.isRemoved
    var i = 0
    while (shown && i < math.min(at, tails.length)) {
      val newer = tails(i).head
      shown = newer.clearsNothing || !newer.isCleared(place.bytes, place.offset, place.length)
      i += 1
    }
    shown
  }

  /** Moves all cursors behind a key. */
  private def pass(newest: Int): Unit = {
    var i = newest + 1
    while (i < places.length) {
      if (!places(i).atEnd && compare(places(i), places(newest)) == 0) places(i).advance()
      i += 1
    }
    places(newest).advance()
  }
}

private object OrderedScan {

  /** Largest number of removed rows that a scan passes again. */
  private val PassedMin = 16

  private def familyBytes(family: Int): Array[Byte] = Array((family >> 8).toByte, family.toByte)

  private def isBelow(a: Array[Byte], b: Array[Byte]): Boolean =
    java.util.Arrays.compareUnsigned(a, b) < 0

  /** Position of a scan in one layer or the base. */
  private sealed trait Cursor {
    def atEnd: Boolean
    def bytes: Array[Byte]
    def offset: Int
    def length: Int
    def isRemoved: Boolean
    def advance(): Unit
    final def key: Array[Byte] = java.util.Arrays.copyOfRange(bytes, offset, offset + length)
  }

  private final class LayerCursor(layer: Layer, family: Int, from: Array[Byte]) extends Cursor {
    private val entries = layer.sorted(family)
    private var at = start

    def entry: Int = entries(at)
    override def atEnd: Boolean = at == entries.length
    override def bytes: Array[Byte] = layer.bytes
    override def offset: Int = layer.keyOffset(entry)
    override def length: Int = layer.keyLength(entry)
    override def isRemoved: Boolean = layer.isRemoved(entry)
    override def advance(): Unit = at += 1

    /** The first entry at or behind `from`. */
    private def start: Int = {
      var low = 0
      var high = entries.length
      while (low < high) {
        val middle = (low + high) >>> 1
        val key = layer.keyOffset(entries(middle))
        val end = key + layer.keyLength(entries(middle))
        if (java.util.Arrays.compareUnsigned(layer.bytes, key, end, from, 0, from.length) < 0)
          low = middle + 1
        else high = middle
      }
      low
    }
  }

  private final class BaseCursor(rows: OrderedRows, from: Array[Byte]) extends Cursor {
    private var at = rows.blockOf(from, 0, from.length)
    private var block = if (rows.isEmpty) RowBlock.Empty else rows.block(at)
    private var row = {
      val found = block.find(from, 0, from.length)
      if (found >= 0) found else -1 - found
    }
    nextBlock()

    def value(out: Slice): Unit =
      out.set(block.bytes, block.valueOffset(row), block.valueLength(row))
    override def atEnd: Boolean = row == block.count
    override def bytes: Array[Byte] = block.bytes
    override def offset: Int = block.keyOffset(row)
    override def length: Int = block.keyLength(row)
    override def isRemoved: Boolean = false

    override def advance(): Unit = {
      row += 1
      nextBlock()
    }

    private def nextBlock(): Unit =
      while (row == block.count && at + 1 < rows.size) {
        at += 1
        block = rows.block(at)
        row = 0
      }
  }

  private def compare(a: Cursor, b: Cursor): Int = java.util.Arrays.compareUnsigned(
    a.bytes,
    a.offset,
    a.offset + a.length,
    b.bytes,
    b.offset,
    b.offset + b.length)
}
