package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/**
 * Sorted rows as they stand in a block's payload, with the place of each row: two ints a row and no object per row. Immutable.
 *
 * @param bytes a msgpack array of keys and values (docs/format.md, section 4.2)
 */
final class RowBlock private (val bytes: Array[Byte], places: Array[Int]) {
  def count: Int = places.length
  def memoryBytes: Long = bytes.length.toLong + 4L * places.length + 48L

  /** Where the content of row i's key starts. */
  def keyOffset(i: Int): Int = places(i) + RowBlock.binHeader(bytes, places(i))
  def keyLength(i: Int): Int = RowBlock.binLength(bytes, places(i))

  private def valuePlace(i: Int): Int = keyOffset(i) + keyLength(i)
  def isRemoved(i: Int): Boolean = (bytes(valuePlace(i)) & 0xff) == 0xc0

  def valueOffset(i: Int): Int = {
    val at = valuePlace(i)
    at + RowBlock.binHeader(bytes, at)
  }
  def valueLength(i: Int): Int = RowBlock.binLength(bytes, valuePlace(i))

  /** Index of a key, or -1 - (where it belongs). */
  def find(key: Array[Byte], offset: Int, length: Int): Int = {
    var low = 0
    var high = places.length - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val from = keyOffset(middle)
      val order = java.util.Arrays.compareUnsigned(
        bytes,
        from,
        from + keyLength(middle),
        key,
        offset,
        offset + length)
      if (order < 0) low = middle + 1
      else if (order > 0) high = middle - 1
      else return middle
    }
    -1 - low
  }
}

object RowBlock {
  val Empty: RowBlock = new RowBlock(Array(0x90.toByte), Array.emptyIntArray)

  /** @throws FormatException when the rows are not what the format says */
  def parse(payload: Array[Byte]): RowBlock = {
    val in = new MsgpackReader(payload)
    val size = in.arraySize()
    if ((size & 1) != 0) throw new FormatException("a block holds a key without a value")
    val places = new Array[Int](size / 2)
    var i = 0
    var lastFrom, lastTo = -1
    while (i < places.length) {
      places(i) = in.position
      val length = in.skipBin()
      val from = in.position - length
      if (length < 2) throw new FormatException("a block holds a key without a family")
      if (lastFrom >= 0 && java.util.Arrays.compareUnsigned(
          payload, lastFrom, lastTo, payload, from, in.position) >= 0) {
        throw new FormatException("the keys of a block are not in ascending order")
      }
      lastFrom = from
      lastTo = in.position
      in.peek() match {
        case 0xc0 => in.skipNil()
        case 0xc4 | 0xc5 | 0xc6 => in.skipBin()
        case _ => throw new FormatException(
            "a block holds appended values: this release does not read multi-value families")
      }
      i += 1
    }
    if (!in.atEnd) throw new FormatException("a block holds bytes behind its last row")
    new RowBlock(payload, places)
  }

  private def binHeader(bytes: Array[Byte], at: Int): Int = (bytes(at) & 0xff) match {
    case 0xc4 => 2
    case 0xc5 => 3
    case _ => 5
  }

  private def binLength(bytes: Array[Byte], at: Int): Int = (bytes(at) & 0xff) match {
    case 0xc4 => bytes(at + 1) & 0xff
    case 0xc5 => ((bytes(at + 1) & 0xff) << 8) | (bytes(at + 2) & 0xff)
    case _ => Block.getInt(bytes, at + 1)
  }

  /** Collects rows in key order into a payload. */
  final class Builder(initialBytes: Int) {
    private val rows = new MsgpackWriter(initialBytes)
    private var places = new Array[Int](64)
    private var size = 0

    def count: Int = size
    def rawBytes: Int = rows.length

    def add(
        key: Array[Byte],
        keyOffset: Int,
        keyLength: Int,
        value: Array[Byte],
        valueOffset: Int,
        valueLength: Int): Unit = {
      place()
      rows.putBin(key, keyOffset, keyLength)
      rows.putBin(value, valueOffset, valueLength)
    }

    def addRemoved(key: Array[Byte], keyOffset: Int, keyLength: Int): Unit = {
      place()
      rows.putBin(key, keyOffset, keyLength)
      rows.putNil()
    }

    def addFrom(block: RowBlock, i: Int): Unit =
      if (block.isRemoved(i)) addRemoved(block.bytes, block.keyOffset(i), block.keyLength(i))
      else {
        add(
          block.bytes,
          block.keyOffset(i),
          block.keyLength(i),
          block.bytes,
          block.valueOffset(i),
          block.valueLength(i))
      }

    def result(): RowBlock = {
      val head = new MsgpackWriter(8)
      head.putArray(size * 2)
      val bytes = new Array[Byte](head.length + rows.length)
      System.arraycopy(head.array, 0, bytes, 0, head.length)
      System.arraycopy(rows.array, 0, bytes, head.length, rows.length)
      val shifted = java.util.Arrays.copyOf(places, size)
      var i = 0
      while (i < size) { shifted(i) += head.length; i += 1 }
      new RowBlock(bytes, shifted)
    }

    def reset(): Unit = { rows.reset(); size = 0 }

    private def place(): Unit = {
      if (size == places.length) places = java.util.Arrays.copyOf(places, size * 2)
      places(size) = rows.length
      size += 1
    }
  }

  /** Rows of both, those of `newer` first; removals of `newer` are left out when `dropRemoved`. */
  def merge(older: RowBlock, newer: RowBlock, dropRemoved: Boolean): RowBlock = {
    val out = new Builder(older.bytes.length + newer.bytes.length)
    var i, j = 0
    def takeNewer(): Unit = {
      if (!(dropRemoved && newer.isRemoved(j))) out.addFrom(newer, j)
      j += 1
    }
    while (i < older.count && j < newer.count) {
      val a = older.keyOffset(i)
      val b = newer.keyOffset(j)
      val order = java.util.Arrays.compareUnsigned(
        older.bytes, a, a + older.keyLength(i), newer.bytes, b, b + newer.keyLength(j))
      if (order < 0) { out.addFrom(older, i); i += 1 }
      else {
        if (order == 0) i += 1
        takeNewer()
      }
    }
    while (i < older.count) { out.addFrom(older, i); i += 1 }
    while (j < newer.count) takeNewer()
    out.result()
  }
}
