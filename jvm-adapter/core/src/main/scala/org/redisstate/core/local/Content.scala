package org.redisstate.core.local

import org.redisstate.core.format.{Bucketing, RowBlock, RowMerge, Tombstone}
import org.redisstate.core.local.blocks.{OrderedRows, Room}

/**
 * Rows of a version: layers, newest first, over a base. Immutable, so that versions share their
 * parts and readers need no lock.
 */
final class Content private (val base: Base, val layers: List[Layer], known: Fronts) {
  def this(base: Base, layers: List[Layer]) = this(base, layers, Fronts.None)

  @volatile private var fronts: Fronts = known

  def layerBytes: Long = layers.iterator.map(_.usedBytes.toLong).sum

  /** Part of `layerBytes` that is still referenced. */
  def liveBytes: Long = layers.iterator.map(_.liveBytes).sum

  def over(newest: List[Layer]): Content =
    if (newest.isEmpty) this else new Content(base, newest ::: layers, fronts.under(newest))

  /** Returns the same rows in as few layers as possible; no merge exceeds the given bytes. */
  def merged(bytesMax: Long): Content = {
    val groups = layers.foldLeft(List.empty[List[Layer]]) {
      case (group :: rest, layer)
          if group.iterator.map(_.usedBytes.toLong).sum + layer.usedBytes <= bytesMax =>
        (layer :: group) :: rest
      case (groups, layer) => List(layer) :: groups
    }
    new Content(base, groups.reverse.map(group => Content.oneOf(group.reverse)), fronts)
  }

  /** Number of rows, if all of them are in buckets of a base in memory. */
  def rowsHere: Option[Long] =
    if (layers.isEmpty && base.orderedFamilies.isEmpty) base.rowsHere else None

  /** Returns whether this content is a base that was folded here. */
  def isFolded: Boolean = layers.isEmpty && base.isOwn

  /** Returns whether a part cannot be dropped block by block. */
  def isHeld: Boolean = layers.nonEmpty || base.isOwn || base.heldBytes > 0

  private def oneLayer: Layer = Content.oneOf(layers)

  private[local] def orderedScan(range: Tombstone): OrderedScan =
    new OrderedScan(
      layers,
      base,
      range,
      fronts.of(range.family),
      key => fronts = fronts.updated(range.family, key))

  def get(hash: Int, key: Array[Byte], offset: Int, length: Int, out: Slice): Boolean =
    Layers.get(layers, base, hash, key, offset, length, out)

  /** Returns whether a key exists; reads no list of values. */
  def contains(hash: Int, key: Array[Byte], offset: Int, length: Int): Boolean = {
    var rest = layers
    while (rest ne Nil) {
      val entry = rest.head.find(hash, key, offset, length)
      if (entry >= 0) return !rest.head.isRemoved(entry)
      if (!rest.head.clearsNothing && rest.head.isCleared(key, offset, length)) return false
      rest = rest.tail
    }
    base.rowsFor(hash, key, offset, length).find(key, offset, length) >= 0
  }

  /** Bytes of the value of a key, or -1; see `Layers.valueBytes`. */
  def valueBytes(hash: Int, key: Array[Byte], offset: Int, length: Int): Long =
    Layers.valueBytes(layers, hash, key, offset, length) {
      val rows = base.rowsFor(hash, key, offset, length)
      val found = rows.find(key, offset, length)
      if (found < 0) -1L else rows.valueLength(found).toLong
    }

  /** Returns all rows of a family: unordered, or in key order for an ordered family. */
  def iterator(family: Int, ordered: Boolean, hashOf: KeyHash): RowIterator = {
    if (ordered) orderedScan(Tombstone(family, None, None))
    else new ContentIterator(layers, base, family, hashOf)
  }

  /**
   * Rows of a family with `from` ≤ encoded key < `to`, in key order; of an ordered family, only
   * those that are asked for are touched.
   */
  def rangeScan(range: Tombstone, hashOf: KeyHash): RowIterator =
    if (hashOf.ordered(range.family)) orderedScan(range) else sortedRange(range, hashOf)

  private def sortedRange(range: Tombstone, hashOf: KeyHash): RowIterator = {
    val all = new ContentIterator(layers, base, range.family, hashOf)
    val found = new RowList
    val key, value = new Slice
    while (all.next(key, value)) {
      if (range.covers(key.array, key.offset, key.length))
        found.add(key.array, key.offset, key.length, value)
    }
    found.sorted.iterator
  }

  /** The rows of an ordered family in key order, some at a time. */
  def sortedBlocks(family: Int): Iterator[RowBlock] = {
    val rows = orderedScan(Tombstone(family, None, None))
    val key, value = new Slice
    val some = new RowBlock.Builder(Content.SortedBytes)
    Iterator.continually {
      some.reset()
      while (some.rawBytes < Content.SortedBytes && rows.next(key, value)) {
        some.add(key.array, key.offset, key.length, value.array, value.offset, value.length)
      }
      some.result()
    }.takeWhile(_.count > 0)
  }

  /**
   * Rows whose bucketing bytes are `prefix`, in key order; found at once, so later changes do not
   * show.
   */
  def prefixScan(hash: Int, prefix: Array[Byte], length: Int): RowIterator = {
    val found = new RowList
    val row = new Slice
    var newer: List[Layer] = Nil
    var rest = layers
    while (rest.nonEmpty) {
      val layer = rest.head
      val index = layer.prefixIndex
      var place = index.first(hash)
      while (place >= 0) {
        val entry = index.entry(place)
        val offset = layer.keyOffset(entry)
        val keyLength = layer.keyLength(entry)
        if (layer.hashOf(entry) == hash && !layer.isRemoved(entry) &&
          startsWith(layer.bytes, offset, keyLength, prefix, length) &&
          layer.isLive(entry) &&
          !Layers.hidden(newer, hash, layer.bytes, offset, keyLength)) {
          Layers.value(rest, base, entry, row)
          found.add(layer.bytes, offset, keyLength, row)
        }
        place = index.next(place)
      }
      newer = layer :: newer
      rest = rest.tail
    }
    scanBase(hash, prefix, length, found, row)
    found.sorted.iterator
  }

  private def scanBase(
      hash: Int,
      prefix: Array[Byte],
      length: Int,
      found: RowList,
      row: Slice): Unit = {
    val rows = base.bucketOf(hash)
    val at = rows.find(prefix, 0, length)
    var i = if (at >= 0) at else -1 - at
    while (i < rows.count && startsWith(
        rows.bytes,
        rows.keyOffset(i),
        rows.keyLength(i),
        prefix,
        length)) {
      val offset = rows.keyOffset(i)
      if (!Layers.hidden(layers, hash, rows.bytes, offset, rows.keyLength(i))) {
        row.set(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
        found.add(rows.bytes, offset, rows.keyLength(i), row)
      }
      i += 1
    }
  }

  private def startsWith(
      key: Array[Byte],
      offset: Int,
      keyLength: Int,
      prefix: Array[Byte],
      length: Int): Boolean =
    keyLength >= length && java.util.Arrays.equals(key, offset, offset + length, prefix, 0, length)
}

object Content {
  private val SortedBytes = 64 << 10

  def empty(): Content = new Content(Base.empty(), Nil)

  private def oneOf(layers: List[Layer]): Layer = layers match {
    case Nil => new Layer(0)
    case List(only) => only
    case _ => Layer.merge(layers)
  }

  /**
   * Folds all rows into the base; the number of buckets grows with the rows.
   *
   * @param live rows of the version, for a base that is not all here
   * @param expiry of rows that are left out
   */
  def fold(
      content: Content,
      hashOf: KeyHash,
      room: Room = Room.Unbounded,
      live: Long = 0,
      expiry: Expiry = Expiry.None): Content =
    if (content.layers.isEmpty) content
    else {
      val layer = content.oneLayer
      val ordered = foldOrdered(content.base, layer, hashOf.ordered)
      val buckets = bucketsOf(content.base, layer, hashOf, live)
      val folded = new Array[RowBlock](buckets)
      foldBuckets(content.base, layer, hashOf, buckets, expiry, inOrder = false)(folded(_) = _)
      new Content(Base.of(folded, ordered.filterNot(_._2.isEmpty), room), Nil)
    }

  /**
   * The buckets of a folded content, some at a time: nothing of them is kept.
   *
   * @param expiry of rows that are left out
   * @return how many there are, and the pass over them
   */
  def folding(
      content: Content,
      hashOf: KeyHash,
      live: Long,
      expiry: Expiry,
      inOrder: Boolean): (Int, ((Int, RowBlock) => Unit) => Unit) = {
    val layer = content.oneLayer
    val buckets = bucketsOf(content.base, layer, hashOf, live)
    (buckets, foldBuckets(content.base, layer, hashOf, buckets, expiry, inOrder))
  }

  private def bucketsOf(old: Base, layer: Layer, hashOf: KeyHash, live: Long): Int =
    if (layer.isEmpty) old.buckets
    else {
      val unordered = layer.rows - hashOf.ordered.iterator.map(layer.sorted(_).length).sum
      val rows = old.rowsHere.fold(live)(_ + unordered)
      val bytes = old.bucketBytes + layer.usedBytes.toLong * unordered / math.max(1, layer.rows)
      math.max(old.buckets, Bucketing.bucketsFor(rows, bytes))
    }

  private def foldBuckets(
      old: Base,
      layer: Layer,
      hashOf: KeyHash,
      buckets: Int,
      expiry: Expiry,
      inOrder: Boolean)(use: (Int, RowBlock) => Unit): Unit = {
    val changed = layer.byBucket(buckets, hashOf.ordered)
    val parts = new Array[RowBlock](buckets / old.buckets)
    def pass(from: Int, until: Int): Unit = {
      val rowsOf = old.pass()
      var i = 0
      while (i < old.buckets) {
        split(layer.uncleared(rowsOf(i)), parts, old.buckets, hashOf)
        var p = from
        while (p < until) {
          val bucket = p * old.buckets + i
          val newer = changed.rows(bucket)
          val rows =
            if (newer.count == 0) parts(p) else RowMerge.merge(parts(p), newer, resolve = true)
          use(bucket, expiry.kept(rows))
          p += 1
        }
        i += 1
      }
    }
    // The parts of an old bucket lie far apart.
    if (inOrder) parts.indices.foreach(p => pass(p, p + 1)) else pass(0, parts.length)
  }

  private def foldOrdered(old: Base, layer: Layer, families: Set[Int]): Map[Int, OrderedRows] = {
    val uncleared = Option.unless(layer.clearsNothing)(layer.uncleared _)
    (families ++ old.orderedFamilies).iterator.map { family =>
      family -> old.ordered(family).merged(layer.rowsOf(family), uncleared)
    }.toMap
  }

  /**
   * Bucket counts are powers of two, so the rows of one bucket go to every `from`-th bucket of a
   * larger count.
   */
  private def split(
      rows: RowBlock,
      parts: Array[RowBlock],
      from: Int,
      hashOf: KeyHash): Unit =
    if (parts.length == 1) parts(0) = rows
    else {
      val into = Array.fill(parts.length)(new RowBlock.Builder(1024))
      var i = 0
      while (i < rows.count) {
        val hash = hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        into(Bucketing.bucket(hash, parts.length * from) / from).addFrom(rows, i)
        i += 1
      }
      parts.indices.foreach(p => parts(p) = into(p).result())
    }
}
