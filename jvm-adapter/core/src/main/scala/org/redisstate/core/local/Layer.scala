package org.redisstate.core.local

import java.nio.ByteBuffer

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.LimitException
import org.redisstate.core.format.{MultiValue, RowBlock, Tombstone}

/**
 * Rows that changed, in a hash table over one growing byte array: the write set while a batch runs,
 * an overlay of the local state afterwards. No object per row. The hash covers the bucketing bytes
 * only and the rows of a prefix share it, so the chain of a key depends on its last bytes too.
 */
final class Layer(initialRows: Int, initialBytes: Int)
    extends Arena(new Array[Byte](math.max(64, initialBytes))) {
  import Arena._
  import Layer._

  def this(initialRows: Int) = this(initialRows, initialRows * 64)

  private var end = 0
  private var last = -1
  private var heads = new Array[Int](chainsFor(initialRows))

  /** Eight bits for each chain, which rule out most absent keys without visiting a chain. */
  private var filter = new Array[Long](heads.length / 8)
  private var size = 0

  /** Made by the first prefix scan. */
  @GuardedBy("this") @volatile private var prefixes: PrefixIndex = _

  /** Number of entries that were sorted, counted each time. */
  private[core] var sortedCount = 0L

  @volatile private var orders = Map.empty[Int, SortedEntries]

  /** Ranges that hide older layers. */
  @volatile private var cleared: List[Tombstone] = Nil

  /** Entry that was added last; its key and value never change, unless it is a list. */
  def lastEntry: Int = last

  def rows: Int = size
  def isEmpty: Boolean = size == 0 && cleared.isEmpty
  def clearsNothing: Boolean = cleared.isEmpty

  /** Ranges that this layer removes from older layers, oldest first. */
  def ranges: Seq[Tombstone] = cleared.reverse
  def memoryBytes: Long =
    arena.length.toLong + 8L * filter.length + 4L * (heads.length + orders.valuesIterator.map(
      _.entries.length).sum)
  def usedBytes: Int = end

  /** Bytes of a minimal layer with the same content. */
  def liveBytes: Long =
    entries().iterator.map(e => (HeadBytes + keyLength(e)).toLong + valueLength(e)).sum

  /** Drops the rows of a range, and hides those of older layers. */
  def clear(range: Tombstone): Unit = {
    if (size > 0)
      entries().foreach(e => if (range.covers(arena, keyOffset(e), keyLength(e))) drop(e))
    cleared ::= range
  }

  /** Returns whether a range of this layer removes a key from older layers. */
  def isCleared(key: Array[Byte], offset: Int, length: Int): Boolean = {
    var rest = cleared
    while (rest.nonEmpty) {
      if (rest.head.covers(key, offset, length)) return true
      rest = rest.tail
    }
    false
  }

  /** Returns whether this layer decides the value of a key, so that older layers do not. */
  def hides(hash: Int, key: Array[Byte], offset: Int, length: Int): Boolean =
    find(hash, key, offset, length) >= 0 || ((cleared ne Nil) && isCleared(key, offset, length))

  /** Returns the older rows that no range of this layer covers. */
  def uncleared(older: RowBlock): RowBlock =
    if (clearsNothing) older
    else {
      val kept = new RowBlock.Builder(older.bytes.length)
      (0 until older.count).foreach { i =>
        if (!isCleared(older.bytes, older.keyOffset(i), older.keyLength(i)))
          kept.addFrom(older, i)
      }
      kept.result()
    }

  /**
   * Returns an equal layer without unused room, for a layer that does not change any more. Readers
   * of this layer are not disturbed.
   */
  def trimmed: Layer = {
    val hasSpareChains = heads.length > chainsFor(size)
    if (!hasSpareChains && end >= arena.length - arena.length / 8) this
    else {
      val copy = new Layer(if (hasSpareChains) size else 0, end)
      System.arraycopy(arena, 0, copy.arena, 0, end)
      copy.end = end
      copy.size = size
      copy.cleared = cleared
      copy.orders = orders
      if (hasSpareChains) copy.link(entries())
      else {
        // The links between entries are in the arena, and stay right while the chains are the same.
        copy.heads = heads.clone()
        copy.filter = filter.clone()
      }
      copy
    }
  }

  /** Entry of a key, or -1. */
  def find(hash: Int, key: Array[Byte], keyOffset: Int, keyLength: Int): Int =
    findMixed(mix(hash, key, keyOffset, keyLength), hash, key, keyOffset, keyLength)

  private def findMixed(
      mixed: Int,
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int): Int = {
    var at = if (mayHold(mixed)) heads(mixed & (heads.length - 1)) - 1 else -1
    while (at >= 0) {
      if (int(at + HashAt) == hash && int(at + KeyLengthAt) == keyLength) {
        val from = at + HeadBytes
        if (java.util.Arrays.equals(
            arena,
            from,
            from + keyLength,
            key,
            keyOffset,
            keyOffset + keyLength)) return at
      }
      at = int(at) - 1
    }
    -1
  }

  def put(
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      value: Array[Byte],
      valueOffset: Int,
      valueLength: Int): Unit =
    insert(hash, key, keyOffset, keyLength, value, valueOffset, valueLength)

  def remove(hash: Int, key: Array[Byte], keyOffset: Int, keyLength: Int): Unit =
    insert(hash, key, keyOffset, keyLength, key, 0, Removed)

  /** @param value elements for the list of a multi-value family, each a msgpack `bin` */
  def append(
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      value: Array[Byte],
      valueOffset: Int,
      valueLength: Int): Unit = {
    val old = find(hash, key, keyOffset, keyLength)
    if (old < 0) putAppended(hash, key, keyOffset, keyLength, value, valueOffset, valueLength)
    else if (isRemoved(old))
      insert(hash, key, keyOffset, keyLength, value, valueOffset, valueLength)
    else extend(old, value, valueOffset, valueLength)
  }

  /**
   * Appends elements to those of an entry; an entry without room for them moves to twice the room.
   */
  private def extend(old: Int, value: Array[Byte], valueOffset: Int, valueLength: Int): Unit = {
    val size = this.valueLength(old)
    val total = MultiValue.checkedLength(size, valueLength)
    val marked = if (isAppended(old)) Appended - (total | Roomy) else total | Roomy
    val at =
      if (isRoomy(old) && total <= roomFor(size)) old
      else {
        val length = keyLength(old)
        val moved = place(hashOf(old), arena, keyOffset(old), length, marked, roomFor(total))
        System.arraycopy(arena, this.valueOffset(old), arena, moved + HeadBytes + length, size)
        moved
      }
    System.arraycopy(value, valueOffset, arena, this.valueOffset(at) + size, valueLength)
    setInt(at + ValueLengthAt, marked)
  }

  private def isRoomy(entry: Int): Boolean = {
    val stored = int(entry + ValueLengthAt)
    stored != Removed && (unmarked(stored) & Roomy) != 0
  }

  /**
   * Elements for the list below, whatever this layer held of the key; for rows as a delta holds
   * them.
   */
  def putAppended(
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      value: Array[Byte],
      valueOffset: Int,
      valueLength: Int): Unit = {
    val fresh = (cleared ne Nil) && isCleared(key, keyOffset, keyLength)
    val stored = if (fresh) valueLength else Appended - valueLength
    insert(hash, key, keyOffset, keyLength, value, valueOffset, stored)
  }

  private def insert(
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      value: Array[Byte],
      valueOffset: Int,
      valueLength: Int): Unit = {
    val stored = lengthOf(valueLength)
    val at = place(hash, key, keyOffset, keyLength, valueLength, stored)
    if (stored > 0) System.arraycopy(value, valueOffset, arena, at + HeadBytes + keyLength, stored)
  }

  /** Adds the entry of a key, whose value follows within `room` bytes. */
  private def place(
      hash: Int,
      key: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      valueLength: Int,
      room: Int): Int = {
    val mixed = mix(hash, key, keyOffset, keyLength)
    val old = findMixed(mixed, hash, key, keyOffset, keyLength)
    if (old >= 0) unlink(old, mixed)
    if (size >= heads.length) grow()
    ensure(HeadBytes + keyLength.toLong + room)
    val at = end
    val head = use(mixed)
    setInt(at, heads(head))
    setInt(at + HashAt, hash)
    setInt(at + KeyLengthAt, keyLength)
    setInt(at + ValueLengthAt, valueLength)
    System.arraycopy(key, keyOffset, arena, at + HeadBytes, keyLength)
    heads(head) = at + 1
    last = at
    end = at + HeadBytes + keyLength + room
    size += 1
    if (prefixes != null) prefixes.add(at)
    at
  }

  /** Removes an entry from the layer. */
  private def drop(old: Int): Unit = unlink(old, mixOf(old))

  /** Unlinks an entry; links are the only bytes of the arena that change. */
  private def unlink(old: Int, mixed: Int): Unit = {
    val head = mixed & (heads.length - 1)
    if (heads(head) == old + 1) heads(head) = int(old)
    else {
      var at = heads(head) - 1
      while (int(at) != old + 1) at = int(at) - 1
      setInt(at, int(old))
    }
    size -= 1
  }

  /** Largest number of entries that a search visits. */
  private[local] def longestChain: Int = heads.iterator.map { head =>
    Iterator.iterate(head - 1)(at => int(at) - 1).takeWhile(_ >= 0).size
  }.max

  /** Returns whether an entry of the prefix index is still current. */
  def isLive(entry: Int): Boolean =
    find(hashOf(entry), arena, keyOffset(entry), keyLength(entry)) == entry

  def prefixIndex: PrefixIndex = {
    if (prefixes == null) synchronized {
      if (prefixes == null) prefixes = new PrefixIndex(this, entries())
    }
    prefixes
  }

  /** Returns all current entries. */
  def entries(): Array[Int] = {
    val all = new Array[Int](size)
    var n, i = 0
    while (i < heads.length) {
      var at = heads(i) - 1
      while (at >= 0) {
        all(n) = at
        n += 1
        at = int(at) - 1
      }
      i += 1
    }
    all
  }

  /**
   * Calls back with the entries of each bucket in key order, as (bucket, rows), in ascending order
   * of buckets.
   *
   * @param without families that are left out
   */
  def foreachBucket(
      buckets: Int,
      without: Set[Int] = Set.empty)(use: (Int, RowBlock) => Unit): Unit = {
    val all = byBucket(buckets, without)
    (0 until buckets).foreach { bucket =>
      val rows = all.rows(bucket)
      if (rows.count > 0) use(bucket, rows)
    }
  }

  /** The entries by bucket, as `foreachBucket` groups them. */
  private[local] def byBucket(buckets: Int, without: Set[Int]): LayerBuckets =
    new LayerBuckets(this, entries(), buckets, without)

  /** The rows of a family in key order. */
  def rowsOf(family: Int): RowBlock = new LayerBlocks(this).block(sorted(family))

  /** The entries of a family in key order, as they are now; found once while nothing changes. */
  private[local] def sorted(family: Int): Array[Int] = orders.get(family) match {
    case Some(known) if known.end == end && known.size == size => known.entries
    case _ =>
      val own = entries().filter(e => StoredKey.familyOf(arena, keyOffset(e)) == family)
      new EntrySort(this).sort(own, 0, own.length)
      sortedCount += own.length
      orders = orders.updated(family, new SortedEntries(own, end, size))
      own
  }

  /** Notes a key in the filter; @return its chain */
  private def use(mixed: Int): Int = {
    filter(mixed & (filter.length - 1)) |= 1L << (mixed >>> 26)
    mixed & (heads.length - 1)
  }

  private def mayHold(mixed: Int): Boolean =
    ((filter(mixed & (filter.length - 1)) >>> (mixed >>> 26)) & 1L) != 0

  private def mixOf(entry: Int): Int =
    mix(hashOf(entry), arena, keyOffset(entry), keyLength(entry))

  private def mix(hash: Int, key: Array[Byte], offset: Int, length: Int): Int = {
    val words = ByteBuffer.wrap(key)
    var mixed = hash.toLong
    var at = offset + length - 8
    val last = math.max(offset, at - TailBytes)
    while (at >= last) {
      mixed = (mixed ^ words.getLong(at)) * Mixer
      mixed ^= mixed >>> 32
      at -= 8
    }
    ((mixed * Mixer) >>> 32).toInt
  }

  private def grow(): Unit = {
    val all = entries()
    heads = new Array[Int](heads.length * 2)
    filter = new Array[Long](heads.length / 8)
    link(all)
  }

  /** Hangs entries into chains that are empty so far. */
  private def link(all: Array[Int]): Unit = {
    var i = 0
    while (i < all.length) {
      val head = use(mixOf(all(i)))
      setInt(all(i), heads(head))
      heads(head) = all(i) + 1
      i += 1
    }
  }

  private def ensure(more: Long): Unit = {
    val wanted = end + more
    if (wanted > arena.length) {
      if (wanted > BytesMax) throw Layer.tooLarge(BytesMax)
      val bytes = math.min(BytesMax, math.max(wanted, arena.length * 2L)).toInt
      resize(bytes)
    }
  }
}

object Layer {
  private final val TailBytes = 32
  private final val Mixer = 0x9e3779b97f4a7c15L
  private final val RoomMin = 64

  /** Most bytes of a layer: the limit of an array. */
  val BytesMax: Long = (1L << 31) - 64

  /** Bytes that a row takes in a layer. */
  private[core] def bytesOf(keyLength: Int, valueLength: Int): Long =
    Arena.HeadBytes.toLong + keyLength + valueLength

  def tooLarge(bytesMax: Long): LimitException = new LimitException(
    s"one batch changes more than $bytesMax bytes of one partition. Nothing was written. " +
      "Use more shuffle partitions or smaller batches.")

  /** Sorted entries, valid for the bytes and rows that the layer had then. */
  private final class SortedEntries(val entries: Array[Int], val end: Int, val size: Int)

  /**
   * Returns a power of two above the number of rows, so that an average chain has at most one row.
   */
  private def chainsFor(rows: Int): Int = Integer.highestOneBit(math.max(8, rows)) * 2

  /** The smallest power of two from a length on. */
  private def roomFor(length: Int): Int =
    if (length <= RoomMin) RoomMin else Integer.highestOneBit(length - 1) << 1

  /** Merges layers into one; removals stay, since older rows may lie below. */
  def merge(newest: Seq[Layer]): Layer = {
    val merged = new Layer(newest.map(_.rows).sum)
    newest.reverseIterator.foreach { layer =>
      layer.cleared.reverse.foreach(merged.clear)
      layer.entries().foreach { e =>
        val key = layer.keyOffset(e)
        val length = layer.keyLength(e)
        if (layer.isAppended(e)) {
          merged.append(
            layer.hashOf(e),
            layer.bytes,
            key,
            length,
            layer.bytes,
            layer.valueOffset(e),
            layer.valueLength(e))
        } else {
          val stored = if (layer.isRemoved(e)) Arena.Removed else layer.valueLength(e)
          merged.insert(
            layer.hashOf(e),
            layer.bytes,
            key,
            length,
            layer.bytes,
            layer.valueOffset(e),
            stored)
        }
      }
    }
    merged.trimmed
  }
}
