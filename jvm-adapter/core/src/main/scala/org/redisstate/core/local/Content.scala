package org.redisstate.core.local

import org.redisstate.core.format.{Bucketing, RowBlock, Tombstone}

/**
 * The rows of a version: layers, newest first, over a base. Immutable, so that versions share what
 * they have in common and readers need no lock.
 */
final class Content private (val base: Base, val layers: List[Layer], known: Fronts) {
  def this(base: Base, layers: List[Layer]) = this(base, layers, Fronts.None)

  @volatile private var fronts: Fronts = known

  def layerBytes: Long = layers.iterator.map(_.usedBytes.toLong).sum

  def over(newest: List[Layer]): Content =
    if (newest.isEmpty) this else new Content(base, newest ::: layers, fronts.under(newest))

  /** The same rows with a single layer. */
  def merged: Content = new Content(base, List(Layer.merge(layers)), fronts)

  /** A stored key of an ordered family below which it has no row, as an earlier scan found; null if none did. */
  private[local] def front(family: Int): Array[Byte] = fronts.of(family)

  /** Told by a scan that there is no row below a stored key. */
  private[local] def foundFront(family: Int, key: Array[Byte]): Unit =
    fronts = fronts.updated(family, key)

  def get(hash: Int, key: Array[Byte], offset: Int, length: Int, out: Slice): Boolean =
    Content.get(layers, base, hash, key, offset, length, out)

  /** Whether a key is there; reads no list of values. */
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

  /** All rows of a family, in no order; of an ordered one, in key order. */
  def iterator(family: Int, ordered: Boolean, hashOf: KeyHash): RowIterator = {
    if (ordered) new OrderedScan(this, Tombstone(family, None, None))
    else new ContentIterator(this, family, hashOf)
  }

  /**
   * Rows of a family with `from` ≤ encoded key < `to`, in key order; of an ordered family, only
   * those that are asked for are touched.
   */
  def rangeScan(range: Tombstone, hashOf: KeyHash): RowIterator =
    if (hashOf.ordered(range.family)) new OrderedScan(this, range) else sortedRange(range, hashOf)

  private def sortedRange(range: Tombstone, hashOf: KeyHash): RowIterator = {
    val all = new ContentIterator(this, range.family, hashOf)
    val found = new RowList
    val key, value = new Slice
    while (all.next(key, value)) {
      if (range.covers(key.array, key.offset, key.length))
        found.add(key.array, key.offset, key.length, value)
    }
    found.sorted.iterator
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
          !Content.hidden(newer, hash, layer.bytes, offset, keyLength)) {
          Content.value(rest, base, entry, row)
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
    val rows = base.bucket(Bucketing.bucket(hash, base.buckets))
    val at = rows.find(prefix, 0, length)
    var i = if (at >= 0) at else -1 - at
    while (i < rows.count && startsWith(
        rows.bytes,
        rows.keyOffset(i),
        rows.keyLength(i),
        prefix,
        length)) {
      val offset = rows.keyOffset(i)
      if (!Content.hidden(layers, hash, rows.bytes, offset, rows.keyLength(i))) {
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
  def empty(): Content = new Content(Base.empty(), Nil)

  /** The value of a key in layers over a base. */
  def get(
      layers: List[Layer],
      base: Base,
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int,
      out: Slice): Boolean = {
    var rest = layers
    while (rest ne Nil) {
      val layer = rest.head
      val entry = layer.find(hash, key, offset, length)
      if (entry >= 0) {
        if (layer.isRemoved(entry)) return false
        value(rest, base, entry, out)
        return true
      }
      if (!layer.clearsNothing && layer.isCleared(key, offset, length)) return false
      rest = rest.tail
    }
    val rows = base.rowsFor(hash, key, offset, length)
    val found = rows.find(key, offset, length)
    if (found >= 0) out.set(rows.bytes, rows.valueOffset(found), rows.valueLength(found))
    found >= 0
  }

  /** The whole value of an entry of the first of these layers, which is no removal. */
  private[local] def value(from: List[Layer], base: Base, entry: Int, out: Slice): Unit = {
    val layer = from.head
    if (layer.isAppended(entry)) join(from, base, entry, out) else layer.value(entry, out)
  }

  private def join(from: List[Layer], base: Base, entry: Int, out: Slice): Unit = {
    val layer = from.head
    val key = layer.keyOffset(entry)
    val length = layer.keyLength(entry)
    val older = new Slice
    val known = !layer.isCleared(layer.bytes, key, length) &&
      get(from.tail, base, layer.hashOf(entry), layer.bytes, key, length, older)
    layer.value(entry, out)
    if (known) {
      val joined = new Array[Byte](older.length + out.length)
      System.arraycopy(older.array, older.offset, joined, 0, older.length)
      System.arraycopy(out.array, out.offset, joined, older.length, out.length)
      out.set(joined, 0, joined.length)
    }
  }

  /** Whether a newer layer decides about a key. */
  private[local] def hidden(
      newer: List[Layer],
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int): Boolean = {
    var rest = newer
    while (rest ne Nil) {
      if (rest.head.hides(hash, key, offset, length)) return true
      rest = rest.tail
    }
    false
  }

  /** All rows in the base; buckets grow with the rows. */
  def fold(content: Content, hashOf: KeyHash): Content =
    if (content.layers.isEmpty) content
    else {
      val layer =
        if (content.layers.tail.isEmpty) content.layers.head else Layer.merge(content.layers)
      val old = content.base
      val ordered = foldOrdered(old, layer, hashOf.ordered)
      val unordered = layer.rows - ordered.keysIterator.map(layer.sorted(_).length).sum
      val rows = old.rows + unordered
      val bytes = old.bucketBytes + layer.usedBytes.toLong * unordered / math.max(1, layer.rows)
      val buckets = math.max(old.buckets, Bucketing.bucketsFor(rows, bytes))
      val folded = new Array[RowBlock](buckets)
      var i = 0
      while (i < old.buckets) {
        split(withoutCleared(old.peek(i), layer), i, old.buckets, folded, hashOf)
        i += 1
      }
      layer.foreachBucket(buckets, ordered.keySet) { (bucket, changed) =>
        folded(bucket) = RowBlock.merge(folded(bucket), changed, resolve = true)
      }
      new Content(Base.of(folded, ordered.filterNot(_._2.isEmpty)), Nil)
    }

  private def foldOrdered(old: Base, layer: Layer, families: Set[Int]): Map[Int, OrderedRows] =
    (families ++ old.orderedFamilies).iterator.map { family =>
      family -> old.ordered(family).merged(layer.rowsOf(family), layer)
    }.toMap

  /**
   * Bucket counts are powers of two, so the rows of one bucket go to every `from`-th bucket of a
   * larger count.
   */
  private def split(
      rows: RowBlock,
      bucket: Int,
      from: Int,
      into: Array[RowBlock],
      hashOf: KeyHash): Unit =
    if (into.length == from) into(bucket) = rows
    else {
      val parts = Array.fill(into.length / from)(new RowBlock.Builder(1024))
      var i = 0
      while (i < rows.count) {
        val hash = hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        parts(Bucketing.bucket(hash, into.length) / from).addFrom(rows, i)
        i += 1
      }
      parts.indices.foreach(p => into(p * from + bucket) = parts(p).result())
    }

  private[local] def withoutCleared(rows: RowBlock, layer: Layer): RowBlock =
    if (layer.clearsNothing) rows
    else {
      val kept = new RowBlock.Builder(rows.bytes.length)
      (0 until rows.count).foreach { i =>
        if (!layer.isCleared(rows.bytes, rows.keyOffset(i), rows.keyLength(i)))
          kept.addFrom(rows, i)
      }
      kept.result()
    }

  /** The rows of an ordered family in the base, in key order. */
  def sortedRows(base: Base, family: Int): RowBlock = base.ordered(family).whole
}
