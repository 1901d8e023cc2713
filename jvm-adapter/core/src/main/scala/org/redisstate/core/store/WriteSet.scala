package org.redisstate.core.store

import scala.collection.mutable

import org.redisstate.core.format._
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.local._

/**
 * Rows that one attempt changed, in layers over an open version. For one task thread.
 *
 * @param initial families that the attempt begins with
 * @param first layer for its changes
 * @param times of the version that is written
 */
private[store] final class WriteSet(
    id: PartitionId,
    local: LocalVersion,
    initial: Seq[Family],
    first: Layer,
    times: WriteTimes) {
  import WriteSet._

  val families: WriteFamilies = new WriteFamilies(initial, local.table.highestId)
  private var expiry = times.of(initial)

  private val stamp = new Expiry.Stamp

  /** Layers that iterators may hold: they do not change any more. Newest first. */
  private var frozen: List[Layer] = Nil

  /** Layers whose rows are on their way to Redis, newest first; older than `frozen`. */
  private var staged: List[Layer] = Nil
  private var stagedBytes = 0L
  private var layer = first

  /** All layers, newest first. */
  private var own: List[Layer] = layer :: Nil
  private var shared = false
  private val ranges = mutable.ArrayBuffer.empty[Tombstone]
  private var live = local.live.all
  private var liveInternal = local.live.internal
  private var written, removed = 0L

  /**
   * Bytes of the layer that lists take which were staged before: they do not bring the next stage
   * nearer.
   */
  private var rejoined = 0L

  /** Changes for previews; null where there are none. */
  private var trace: ChangeTrace = _
  private val lastKey = new LastKey
  private val probe = new Slice

  def numRows: LiveRows = LiveRows(live, liveInternal)
  def numWritten: Long = written
  def numRemoved: Long = removed
  def tombstones: Seq[Tombstone] = ranges.toSeq

  /** Rows of the layer that takes the next changes. */
  def layerRows: Int = layer.rows

  /** Bytes of the layer that takes the next changes. */
  def layerBytes: Int = layer.usedBytes
  def memoryBytes: Long = own.iterator.map(_.memoryBytes).sum

  /** Returns whether enough rows have changed since the last `stage`. */
  def isLarge: Boolean = layer.usedBytes > StageBytes + rejoined

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = {
    val hash = families.hashOf(key, 0, length)
    val found = lookup(hash, key, length, out) && expiry.show(key, out)
    lastKey.set(key, length, found)
    found
  }

  /** Adds or replaces the description of a family; @return false for one that is known so. */
  def define(family: Family): Boolean = {
    val isNew = families.define(family)
    if (isNew) described()
    isNew
  }

  /** Removes a family. */
  def forget(id: Int): Unit = {
    families.remove(id)
    described()
  }

  private def described(): Unit = {
    expiry = times.of(families.all)
    if (trace ne null) trace.describe(families.all)
  }

  /**
   * Traces all changes from now on, before the first of them.
   *
   * @param isTableNew whether the version below has no table of families
   */
  def traced(isTableNew: Boolean): ChangeTrace = {
    trace = new ChangeTrace(layer, families.all, isTableNew)
    trace
  }

  def contains(key: Array[Byte], length: Int): Boolean = {
    val found = exists(families.hashOf(key, 0, length), key, length)
    lastKey.set(key, length, found)
    found
  }

  /** Writes a row with the version's expiry. */
  def put(key: Array[Byte], keyLength: Int, value: Array[Byte], valueLength: Int): Unit =
    put(key, keyLength, value, valueLength, times.expiryS)

  /** @param expiryS of the row, if it can expire */
  def put(
      key: Array[Byte],
      keyLength: Int,
      value: Array[Byte],
      valueLength: Int,
      expiryS: Long): Unit = {
    SegmentWriter.checkLimits(keyLength, valueLength, s"put in $id")
    if (expiry.ofKey(key, 0)) {
      val length = stamp(value, 0, valueLength, expiryS)
      putRow(key, keyLength, stamp.bytes, length)
    } else putRow(key, keyLength, value, valueLength)
  }

  /** Returns the expiry of a row that can expire; None if there is no such row. */
  def expiryOf(key: Array[Byte], length: Int): Option[Long] = {
    val found =
      if (lookup(families.hashOf(key, 0, length), key, length, probe)) expiry.left(probe) else None
    lastKey.set(key, length, found.nonEmpty)
    found
  }

  /** Replaces the expiry of a row that can expire; does nothing for an absent row. */
  def renew(key: Array[Byte], length: Int, expiryS: Long): Unit =
    if (get(key, length, probe)) {
      val stampedLength = stamp(probe.array, probe.offset, probe.length, expiryS)
      putRow(key, length, stamp.bytes, stampedLength)
    }

  private def putRow(
      key: Array[Byte],
      keyLength: Int,
      value: Array[Byte],
      valueLength: Int): Unit = {
    thaw()
    val hash = families.hashOf(key, 0, keyLength)
    if (!exists(hash, key, keyLength)) count(key, 1)
    layer.put(hash, key, 0, keyLength, value, 0, valueLength)
    if (trace ne null) {
      if (trace.isList(key)) trace.putList(hash, key, keyLength, value, valueLength)
      else trace.note(layer.lastEntry)
    }
    written += 1
    lastKey.set(key, keyLength, found = true)
  }

  /** @return whether the key was there */
  def remove(key: Array[Byte], keyLength: Int): Boolean = {
    thaw()
    val hash = families.hashOf(key, 0, keyLength)
    val found = exists(hash, key, keyLength)
    if (found) {
      count(key, -1)
      layer.remove(hash, key, 0, keyLength)
      if (trace ne null) {
        if (trace.isList(key)) trace.removeList(hash, key, keyLength)
        else trace.note(layer.lastEntry)
      }
      removed += 1
      lastKey.set(key, keyLength, found = false)
    }
    found
  }

  /** Appends to a list without reading it: only its length is looked up. */
  def append(key: Array[Byte], keyLength: Int, elements: Array[Byte], length: Int): Unit = {
    thaw()
    val hash = families.hashOf(key, 0, keyLength)
    val before = Layers.valueBytes(own, hash, key, 0, keyLength) {
      local.read(_.valueBytes(hash, key, 0, keyLength))
    }
    // As a whole: it is one value when it is read, and in the next snapshot.
    SegmentWriter.checkLimits(keyLength, math.max(0, before) + length, s"append in $id")
    if (before < 0) count(key, 1)
    // A part replaces the row of an earlier part: what is staged already has to be written as a
    // whole, once for all that is appended until the next stage.
    if (holdsRow(staged, hash, key, keyLength) && !holdsRow(
        layer :: frozen,
        hash,
        key,
        keyLength)) {
      val known = lookup(hash, key, keyLength, probe)
      val joined =
        if (known) MultiValue.join(probe.array, probe.offset, probe.length, elements, 0, length)
        else java.util.Arrays.copyOf(elements, length)
      layer.put(hash, key, 0, keyLength, joined, 0, joined.length)
      rejoined += RejoinedShare * joined.length
    } else layer.append(hash, key, 0, keyLength, elements, 0, length)
    if (trace ne null) trace.appendToList(hash, key, keyLength, elements, length)
    written += 1
    lastKey.set(key, keyLength, found = true)
  }

  private def holdsRow(
      layers: List[Layer],
      hash: Int,
      key: Array[Byte],
      length: Int): Boolean = layers.exists(_.find(hash, key, 0, length) >= 0)

  def iterator(family: Int): RowIterator =
    if (families.hashOf.ordered(family)) rangeScan(family, None, None)
    else {
      val layers = snapshot()
      val hashOf = families.hashOf
      expiry.shown(family, local.scan(_.over(layers).iterator(family, ordered = false, hashOf)))
    }

  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = KeyHash.ofPrefix(prefix, length)
    val family = StoredKey.familyOf(prefix, 0)
    expiry.shown(family, local.read(_.over(own).prefixScan(hash, prefix, length)))
  }

  def rangeScan(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): RowIterator =
    expiry.shown(
      family,
      local.rangeScan(Tombstone(family, from, to), snapshot(), families.hashOf))

  def removeRange(range: Tombstone): Unit = {
    thaw()
    val isInternal = families.isInternal(range.family)
    val key, value = new Slice
    val rows = expiry.shown(range.family, local.rangeScan(range, own, families.hashOf))
    while (rows.next(key, value)) {
      count(-1, isInternal)
      removed += 1
    }
    layer = Layer.merge(layer :: frozen)
    frozen = Nil
    layer.clear(range)
    // The tombstone applies before all rows of the delta: those that are staged are removed one by
    // one.
    staged.foreach { earlier =>
      earlier.entries().foreach { e =>
        val at = earlier.keyOffset(e)
        val length = earlier.keyLength(e)
        if (range.covers(earlier.bytes, at, length))
          layer.remove(earlier.hashOf(e), earlier.bytes, at, length)
      }
    }
    ranges += range
    if (trace ne null) trace.removeRange(range, layer)
    relink()
    lastKey.forget()
  }

  /**
   * Hands over the rows that changed since the last stage; reads still find them here.
   *
   * @param bytesMax of all rows that are staged
   */
  def stage(bytesMax: Long): Layer = {
    rejoined = 0
    val isWhole = frozen.isEmpty
    val full = if (isWhole) layer else Layer.merge(layer :: frozen)
    // Who reads the delta brings all of its parts into one layer.
    stagedBytes += full.liveBytes
    if (stagedBytes > bytesMax) throw Layer.tooLarge(bytesMax)
    staged = full :: staged
    frozen = Nil
    layer = new Layer(full.rows)
    if (trace ne null) trace.follow(layer, isKept = isWhole)
    shared = false
    relink()
    full
  }

  /** Returns the rows that changed since the last stage; there are no further changes. */
  def rest(): Layer = {
    if (frozen.nonEmpty) layer = Layer.merge(layer :: frozen)
    frozen = Nil
    relink()
    layer
  }

  /** Returns all changed rows, after `rest`. */
  def all: Layer = if (staged.isEmpty) layer else Layer.merge(layer :: staged)

  /** Returns the layers, newest first, in as little memory as they need. */
  def trimmed(): List[Layer] = {
    own = own.filterNot(_.isEmpty).map(_.trimmed)
    own
  }

  private def count(key: Array[Byte], change: Int): Unit =
    count(change, families.isInternal(StoredKey.familyOf(key, 0)))

  private def count(change: Int, internal: Boolean): Unit = {
    live += change
    if (internal) liveInternal += change
  }

  private def lookup(hash: Int, key: Array[Byte], length: Int, out: Slice): Boolean = {
    var rest = own
    while (rest ne Nil) {
      val newest = rest.head
      val entry = newest.find(hash, key, 0, length)
      if (entry >= 0) {
        if (newest.isRemoved(entry)) return false
        if (newest.isAppended(entry)) {
          val from = rest
          return local.read(_.over(from).get(hash, key, 0, length, out))
        }
        newest.value(entry, out)
        return true
      }
      if (!newest.clearsNothing && newest.isCleared(key, 0, length)) return false
      rest = rest.tail
    }
    local.get(hash, key, length, out)
  }

  private def relink(): Unit = own = layer :: frozen ::: staged

  private def exists(hash: Int, key: Array[Byte], length: Int): Boolean =
    if (lastKey.is(key, length)) lastKey.found
    else if (expiry.ofKey(key, 0)) lookup(hash, key, length, probe) && expiry.show(probe)
    else holds(hash, key, length)

  private def holds(hash: Int, key: Array[Byte], length: Int): Boolean = {
    var rest = own
    while (rest ne Nil) {
      val entry = rest.head.find(hash, key, 0, length)
      if (entry >= 0) return !rest.head.isRemoved(entry)
      if (!rest.head.clearsNothing && rest.head.isCleared(key, 0, length)) return false
      rest = rest.tail
    }
    local.contains(hash, key, length)
  }

  /** The layers for an iterator: the next change goes into another one. */
  private def snapshot(): List[Layer] = {
    shared = layer.rows > 0 || !layer.clearsNothing
    own.filterNot(_.isEmpty)
  }

  /** Begins another layer where an iterator may hold the present one. */
  private def thaw(): Unit =
    if (shared) {
      frozen = layer :: frozen
      if (frozen.length > FrozenMax) frozen = List(Layer.merge(frozen))
      layer = new Layer(InitialRows)
      if (trace ne null) trace.follow(layer, isKept = false)
      shared = false
      relink()
    }
}

private object WriteSet {
  private val InitialRows = 256
  private val StageBytes = 4 << 20

  /** A list may take so many times its bytes in a layer in which it grows to twice its length. */
  private val RejoinedShare = 3L
  private val FrozenMax = 8

  /** Key of the last request: an operator's put mostly follows its get. */
  private final class LastKey {
    private var bytes = new Array[Byte](64)
    private var length = -1
    var found: Boolean = false

    def is(key: Array[Byte], keyLength: Int): Boolean =
      keyLength == length && java.util.Arrays.equals(key, 0, keyLength, bytes, 0, keyLength)

    def set(key: Array[Byte], keyLength: Int, found: Boolean): Unit = {
      if (bytes.length < keyLength) bytes = new Array[Byte](keyLength * 2)
      System.arraycopy(key, 0, bytes, 0, keyLength)
      length = keyLength
      this.found = found
    }

    def forget(): Unit = length = -1
  }
}
