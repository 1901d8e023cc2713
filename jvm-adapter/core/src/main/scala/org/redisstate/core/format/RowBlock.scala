package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/**
 * Sorted rows as they stand in a block's payload, without an object per row. Immutable. Rows of one
 * width need no index: their places follow from their number. All other rows have one of an int a
 * row. It is one class, since `find` and the offsets are hot: a call with two implementations
 * behind it would cost more than the branch.
 *
 * @param bytes a msgpack array of keys and values (docs/format.md, section 4.2)
 * @param places of the rows; null if they have one width
 * @param count of the rows
 * @param stride width of a row with its heads; 0 if there are places
 * @param firstKey start of the content of the first key, and `firstValue` of its value, if there is
 *   a stride; `keyBytes` and `valueBytes` are their lengths then
 */
final class RowBlock private (
    val bytes: Array[Byte],
    places: Array[Int],
    val count: Int,
    private val stride: Int,
    firstKey: Int,
    keyBytes: Int,
    firstValue: Int,
    valueBytes: Int) {

  private def this(bytes: Array[Byte], places: Array[Int]) =
    this(bytes, places, places.length, 0, 0, 0, 0, 0)

  /** True if each row is a key and its whole value, and all keys and all values have one length. */
  def isFixed: Boolean = stride > 0

  def memoryBytes: Long =
    bytes.length.toLong + RowBlock.ObjectBytes + (if (stride > 0) 0L else 4L * count + 16L)

  /** Start of the content of row i's key. */
  def keyOffset(i: Int): Int =
    if (stride > 0) firstKey + i * stride
    else places(i) + RowBlock.binHeader(bytes, places(i))
  def keyLength(i: Int): Int = if (stride > 0) keyBytes else RowBlock.binLength(bytes, places(i))

  private def place(i: Int): Int =
    if (stride > 0) firstKey - RowBlock.headOf(keyBytes) + i * stride else places(i)
  private def valuePlace(i: Int): Int = keyOffset(i) + keyLength(i)
  def isRemoved(i: Int): Boolean = stride == 0 && (bytes(valuePlace(i)) & 0xff) == 0xc0

  /** Returns whether the value only holds elements to append to the older value. */
  def isAppended(i: Int): Boolean = stride == 0 && (bytes(valuePlace(i)) & 0xff) >= 0xc7

  def valueOffset(i: Int): Int =
    if (stride > 0) firstValue + i * stride
    else {
      val at = valuePlace(i)
      at + RowBlock.valueHeader(bytes, at)
    }
  def valueLength(i: Int): Int =
    if (stride > 0) valueBytes
    else {
      val at = valuePlace(i)
      val code = bytes(at) & 0xff
      if (code < 0xc7) RowBlock.binLength(bytes, at) else RowBlock.extLength(bytes, at, code)
    }

  /** Returns whether each row is a key with its whole value. */
  def isWhole: Boolean = stride > 0 || {
    var i = 0
    while (i < count && !isRemoved(i) && !isAppended(i)) i += 1
    i == count
  }

  /** Index of a key, or -1 - (where it belongs). */
  def find(key: Array[Byte], offset: Int, length: Int): Int = find(key, offset, length, 0)

  private def find(key: Array[Byte], offset: Int, length: Int, from: Int): Int = {
    var low = from
    var high = count - 1
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

  /** Indexes of the keys of another block, each as `find` gives it. */
  private[format] def findAll(other: RowBlock): Array[Int] = {
    val found = new Array[Int](other.count)
    var from, i = 0
    while (i < found.length) {
      val at = find(other.bytes, other.keyOffset(i), other.keyLength(i), from)
      found(i) = at
      from = if (at >= 0) at + 1 else -1 - at
      i += 1
    }
    found
  }

  /** Returns whether the rows of another block have the widths of these, and their keys are here. */
  private[format] def canReplace(other: RowBlock, found: Array[Int]): Boolean =
    isFixed && other.isFixed && keyBytes == other.keyLength(0) &&
      valueBytes == other.valueLength(0) && {
        var i = 0
        while (i < found.length && found(i) >= 0) i += 1
        i == found.length
      }

  /** Returns a copy of these rows with the values of another block, whose keys are at `found`. */
  private[format] def replaced(other: RowBlock, found: Array[Int]): RowBlock = {
    val copy = bytes.clone()
    var i = 0
    while (i < found.length) {
      System.arraycopy(other.bytes, other.valueOffset(i), copy, valueOffset(found(i)), valueBytes)
      i += 1
    }
    new RowBlock(copy, null, count, stride, firstKey, keyBytes, firstValue, valueBytes)
  }

  /** Returns whether all rows of one width begin, and separate key from value, by the same bytes. */
  private def headsAreEqual: Boolean = {
    val key = place(0)
    val value = firstKey + keyBytes
    var shift = stride
    var i = 1
    while (i < count && isEqual(key, shift, firstKey - key) &&
      isEqual(value, shift, firstValue - value)) {
      i += 1
      shift += stride
    }
    i >= count
  }

  private def isEqual(at: Int, shift: Int, length: Int): Boolean = {
    var i = 0
    while (i < length && bytes(at + i) == bytes(at + shift + i)) i += 1
    i == length
  }

  private def isAscending: Boolean = {
    var at = firstKey + stride
    var i = 1
    while (i < count && java.util.Arrays.compareUnsigned(
        bytes,
        at - stride,
        at - stride + keyBytes,
        bytes,
        at,
        at + keyBytes) < 0) {
      i += 1
      at += stride
    }
    i >= count
  }
}

object RowBlock {
  val Empty: RowBlock = new RowBlock(Array(0x90.toByte), Array.emptyIntArray)

  /** Bytes of a block's object and of the head of its array. */
  private val ObjectBytes = 64L

  /** @throws FormatException when the rows are not what the format says */
  def parse(payload: Array[Byte]): RowBlock = {
    val in = new MsgpackReader(payload)
    val size = in.arraySize()
    if ((size & 1) != 0) throw new FormatException("a block holds a key without a value")
    val fixed = if (size > 0) parseFixed(payload, in.position, size / 2) else null
    if (fixed != null) fixed else parseAny(payload, in, size / 2)
  }

  /** Rows of one width, if their heads are equal; otherwise null, whatever is wrong. */
  private def parseFixed(payload: Array[Byte], from: Int, count: Int): RowBlock = {
    val keyBytes = shortBin(payload, from)
    val value = from + headOf(keyBytes) + keyBytes
    val valueBytes = if (keyBytes < 2) -1 else shortBin(payload, value)
    if (valueBytes < 0) null
    else {
      val rows = fixed(payload, count, from, keyBytes, valueBytes)
      val end = from.toLong + rows.stride.toLong * count
      if (end == payload.length && rows.headsAreEqual && rows.isAscending) rows else null
    }
  }

  /** Content length of a `bin` in its shortest encoding, or -1; it may reach beyond the payload. */
  private def shortBin(bytes: Array[Byte], at: Int): Int = {
    val left = bytes.length - at
    if (left < 5) if (left >= 2 && (bytes(at) & 0xff) == 0xc4) bytes(at + 1) & 0xff else -1
    else (bytes(at) & 0xff) match {
      case 0xc4 | 0xc5 | 0xc6 =>
        val length = binLength(bytes, at)
        if (length >= 0 && length < left && headOf(length) == binHeader(bytes, at)) length else -1
      case _ => -1
    }
  }

  private def fixed(
      bytes: Array[Byte],
      count: Int,
      from: Int,
      keyBytes: Int,
      valueBytes: Int): RowBlock = {
    val firstKey = from + headOf(keyBytes)
    val firstValue = firstKey + keyBytes + headOf(valueBytes)
    new RowBlock(
      bytes,
      null,
      count,
      firstValue + valueBytes - from,
      firstKey,
      keyBytes,
      firstValue,
      valueBytes)
  }

  private def parseAny(payload: Array[Byte], in: MsgpackReader, count: Int): RowBlock = {
    val places = new Array[Int](count)
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

  /** Bytes of the head of a `bin`, in its shortest encoding. */
  private def headOf(length: Int): Int =
    if (length < 0x100) 2 else if (length < 0x10000) 3 else 5

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

    /** Lengths of all keys and of all values so far; `MixedWidths` if they differ. */
    private var keyBytes, valueBytes = 0

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
      note(keyLength, valueLength)
      rows.putBin(key, keyOffset, keyLength)
      rows.putBin(value, valueOffset, valueLength)
    }

    def addRemoved(key: Array[Byte], keyOffset: Int, keyLength: Int): Unit = {
      place()
      keyBytes = MixedWidths
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
      keyBytes = MixedWidths
      rows.putBin(key, keyOffset, keyLength)
      rows.putAppended(value, valueOffset, valueLength)
    }

    /** Adds a row whose value joins that of `older` row i and that of `newer` row j. */
    private[format] def addJoined(older: RowBlock, i: Int, newer: RowBlock, j: Int): Unit = {
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
    private[format] def addRun(block: RowBlock, from: Int, until: Int): Unit =
      if (from < until) {
        val start = block.place(from)
        val end = if (until < block.count) block.place(until) else block.bytes.length
        val shift = rows.length - start
        val more = until - from
        if (size + more > places.length) {
          places = java.util.Arrays.copyOf(places, math.max(size + more, size * 2))
        }
        var i = from
        while (i < until) {
          places(size + i - from) = block.place(i) + shift
          i += 1
        }
        size += more
        if (!block.isFixed) keyBytes = MixedWidths
        else note(size == more, block.keyLength(0), block.valueLength(0))
        rows.raw(block.bytes, start, end - start)
      }

    def result(): RowBlock = {
      val head = new MsgpackWriter(8)
      head.putArray(size * 2)
      val bytes = new Array[Byte](head.length + rows.length)
      System.arraycopy(head.array, 0, bytes, 0, head.length)
      System.arraycopy(rows.array, 0, bytes, head.length, rows.length)
      if (size > 0 && keyBytes >= 0) fixed(bytes, size, head.length, keyBytes, valueBytes)
      else indexed(bytes, head.length)
    }

    private def indexed(bytes: Array[Byte], head: Int): RowBlock = {
      val shifted = java.util.Arrays.copyOf(places, size)
      var i = 0
      while (i < size) { shifted(i) += head; i += 1 }
      new RowBlock(bytes, shifted)
    }

    def reset(): Unit = { rows.reset(); size = 0 }

    private def place(): Unit = {
      if (size == places.length) places = java.util.Arrays.copyOf(places, size * 2)
      places(size) = rows.length
      size += 1
    }

    /** Notes the lengths of the row that was placed last. */
    private def note(key: Int, value: Int): Unit = note(size == 1, key, value)

    private def note(areFirst: Boolean, key: Int, value: Int): Unit =
      if (areFirst) {
        keyBytes = key
        valueBytes = value
      } else if (key != keyBytes || value != valueBytes) keyBytes = MixedWidths
  }

  private final val MixedWidths = -1
}
