package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/**
 * Sorted rows as they stand in a block's payload, with the place of each row: two ints a row and no
 * object per row. Immutable.
 *
 * @param bytes a msgpack array of keys and values (docs/format.md, section 4.2)
 */
final class RowBlock private (val bytes: Array[Byte], places: Array[Int]) {
  def count: Int = places.length
  def memoryBytes: Long = bytes.length.toLong + 4L * places.length + 48L

  /** Start of the content of row i's key. */
  def keyOffset(i: Int): Int = places(i) + RowBlock.binHeader(bytes, places(i))
  def keyLength(i: Int): Int = RowBlock.binLength(bytes, places(i))

  private def place(i: Int): Int = places(i)
  private def valuePlace(i: Int): Int = keyOffset(i) + keyLength(i)
  def isRemoved(i: Int): Boolean = (bytes(valuePlace(i)) & 0xff) == 0xc0

  /** Returns whether the value only holds elements to append to the older value. */
  def isAppended(i: Int): Boolean = {
    val code = bytes(valuePlace(i)) & 0xff
    code >= 0xc7
  }

  def valueOffset(i: Int): Int = {
    val at = valuePlace(i)
    at + RowBlock.valueHeader(bytes, at)
  }
  def valueLength(i: Int): Int = {
    val at = valuePlace(i)
    val code = bytes(at) & 0xff
    if (code < 0xc7) RowBlock.binLength(bytes, at) else RowBlock.extLength(bytes, at, code)
  }

  /** Returns whether each row is a key with its whole value. */
  def isWhole: Boolean = {
    var i = 0
    while (i < places.length && !isRemoved(i) && !isAppended(i)) i += 1
    i == places.length
  }

  /** Index of a key, or -1 - (where it belongs). */
  def find(key: Array[Byte], offset: Int, length: Int): Int = find(key, offset, length, 0)

  private def find(key: Array[Byte], offset: Int, length: Int, from: Int): Int = {
    var low = from
    var high = places.length - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val at = keyOffset(middle)
      val order = java.util.Arrays.compareUnsigned(
        bytes,
        at,
        at + keyLength(middle),
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
          payload,
          lastFrom,
          lastTo,
          payload,
          from,
          in.position) >= 0) {
        throw new FormatException("the keys of a block are not in ascending order")
      }
      lastFrom = from
      lastTo = in.position
      in.peek() match {
        case 0xc0 => in.skipNil()
        case 0xc4 | 0xc5 | 0xc6 => in.skipBin()
        case _ =>
          val appended = in.skipAppended()
          MultiValue.check(payload, in.position - appended, appended)
      }
      i += 1
    }
    if (!in.atEnd) throw new FormatException("a block holds bytes after its last row")
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

  private def valueHeader(bytes: Array[Byte], at: Int): Int = (bytes(at) & 0xff) match {
    case 0xc0 => 1
    case 0xc7 => 3
    case 0xc8 => 4
    case 0xc9 => 6
    case code if code > 0xc9 => 2
    case _ => binHeader(bytes, at)
  }

  private def extLength(bytes: Array[Byte], at: Int, code: Int): Int = code match {
    case 0xc7 => bytes(at + 1) & 0xff
    case 0xc8 => ((bytes(at + 1) & 0xff) << 8) | (bytes(at + 2) & 0xff)
    case 0xc9 => Block.getInt(bytes, at + 1)
    case _ => 1 << (code - 0xd4)
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

    /** @param value elements for a list, each a msgpack `bin` */
    def addAppended(
        key: Array[Byte],
        keyOffset: Int,
        keyLength: Int,
        value: Array[Byte],
        valueOffset: Int,
        valueLength: Int): Unit = {
      place()
      rows.putBin(key, keyOffset, keyLength)
      rows.putAppended(value, valueOffset, valueLength)
    }

    /** Adds a row whose value joins that of `older` row i and that of `newer` row j. */
    private[RowBlock] def addJoined(older: RowBlock, i: Int, newer: RowBlock, j: Int): Unit = {
      val first = older.valueLength(i)
      val joined = MultiValue.join(
        older.bytes,
        older.valueOffset(i),
        first,
        newer.bytes,
        newer.valueOffset(j),
        newer.valueLength(j))
      val key = newer.keyOffset(j)
      if (older.isAppended(i)) {
        addAppended(newer.bytes, key, newer.keyLength(j), joined, 0, joined.length)
      } else add(newer.bytes, key, newer.keyLength(j), joined, 0, joined.length)
    }

    def addFrom(block: RowBlock, i: Int): Unit =
      if (block.isRemoved(i)) addRemoved(block.bytes, block.keyOffset(i), block.keyLength(i))
      else if (block.isAppended(i)) {
        addAppended(
          block.bytes,
          block.keyOffset(i),
          block.keyLength(i),
          block.bytes,
          block.valueOffset(i),
          block.valueLength(i))
      } else {
        add(
          block.bytes,
          block.keyOffset(i),
          block.keyLength(i),
          block.bytes,
          block.valueOffset(i),
          block.valueLength(i))
      }

    /** Rows [from, until) of a block, whose bytes follow one another. */
    private[RowBlock] def addRun(block: RowBlock, from: Int, until: Int): Unit =
      if (from < until) {
        val start = block.place(from)
        val end = if (until < block.count) block.place(until) else block.bytes.length
        val shift = rows.length - start
        var i = from
        while (i < until) {
          if (size == places.length) places = java.util.Arrays.copyOf(places, size * 2)
          places(size) = block.place(i) + shift
          size += 1
          i += 1
        }
        rows.raw(block.bytes, start, end - start)
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

  /**
   * Rows of both; those of `newer` override.
   *
   * @param resolve `older` is all there is below: removals of `newer` leave nothing, appended
   *   elements become the value
   */
  def merge(older: RowBlock, newer: RowBlock, resolve: Boolean): RowBlock = {
    val out = new Builder(older.bytes.length + newer.bytes.length)
    var i, j = 0
    while (j < newer.count) {
      val found = older.find(newer.bytes, newer.keyOffset(j), newer.keyLength(j), i)
      val until = if (found >= 0) found else -1 - found
      out.addRun(older, i, until)
      addNewer(out, older, found, newer, j, resolve)
      i = if (found >= 0) found + 1 else until
      j += 1
    }
    out.addRun(older, i, older.count)
    out.result()
  }

  private def addNewer(
      out: Builder,
      older: RowBlock,
      i: Int,
      newer: RowBlock,
      j: Int,
      resolve: Boolean): Unit =
    if (!newer.isAppended(j)) {
      if (!(resolve && newer.isRemoved(j))) out.addFrom(newer, j)
    } else if (i >= 0 && !older.isRemoved(i)) out.addJoined(older, i, newer, j)
    else if (i >= 0 || resolve) {
      val key = newer.keyOffset(j)
      out.add(
        newer.bytes,
        key,
        newer.keyLength(j),
        newer.bytes,
        newer.valueOffset(j),
        newer.valueLength(j))
    } else out.addFrom(newer, j)
}
