package org.redisstate.core.local

import org.redisstate.core.format.{Bucketing, RowBlock}

/**
 * The rows of a version: layers, newest first, over a base. Immutable, so that versions share what they have in common and readers
 * need no lock.
 */
final class Content(val base: Base, val layers: List[Layer]) {

  def layerBytes: Long = layers.iterator.map(_.usedBytes.toLong).sum
  def memoryBytes: Long = base.memoryBytes + layers.iterator.map(_.memoryBytes).sum
  def over(newest: List[Layer]): Content = new Content(base, newest ::: layers)

  def get(hash: Int, key: Array[Byte], offset: Int, length: Int, out: Slice): Boolean = {
    var rest = layers
    while (rest.nonEmpty) {
      val layer = rest.head
      val entry = layer.find(hash, key, offset, length)
      if (entry >= 0) {
        if (layer.isRemoved(entry)) return false
        layer.value(entry, out)
        return true
      }
      if (layer.clearedFamilies.nonEmpty && layer.clearedFamilies(Layer.familyOf(key, offset))) return false
      rest = rest.tail
    }
    val rows = base.bucket(Bucketing.bucket(hash, base.buckets))
    val found = rows.find(key, offset, length)
    if (found >= 0) out.set(rows.bytes, rows.valueOffset(found), rows.valueLength(found))
    found >= 0
  }

  /** All rows of a family, in no order. */
  def iterator(family: Int, hashOf: KeyHash): RowIterator =
    new ContentIterator(this, family, hashOf)

  /** Rows whose bucketing bytes are `prefix`; found at once, so later changes do not show. */
  def prefixScan(hash: Int, prefix: Array[Byte], length: Int): RowIterator = {
    val found = new RowList
    var newer: List[Layer] = Nil
    var rest = layers
    var cleared = false
    while (rest.nonEmpty && !cleared) {
      val layer = rest.head
      var entry = layer.chain(hash)
      while (entry >= 0) {
        if (layer.hashOf(entry) == hash && !layer.isRemoved(entry) &&
          startsWith(layer.bytes, layer.keyOffset(entry), layer.keyLength(entry), prefix, length) &&
          !overridden(newer, hash, layer.bytes, layer.keyOffset(entry), layer.keyLength(entry))) {
          found.add(
            layer.bytes,
            layer.keyOffset(entry),
            layer.keyLength(entry),
            layer.valueOffset(entry),
            layer.valueLength(entry))
        }
        entry = layer.next(entry)
      }
      cleared = layer.clearedFamilies(Layer.familyOf(prefix, 0))
      newer = layer :: newer
      rest = rest.tail
    }
    if (!cleared) scanBase(hash, prefix, length, found)
    found.iterator
  }

  private def scanBase(hash: Int, prefix: Array[Byte], length: Int, found: RowList): Unit = {
    val rows = base.bucket(Bucketing.bucket(hash, base.buckets))
    val at = rows.find(prefix, 0, length)
    var i = if (at >= 0) at else -1 - at
    while (i < rows.count && startsWith(rows.bytes, rows.keyOffset(i), rows.keyLength(i), prefix, length)) {
      if (!overridden(layers, hash, rows.bytes, rows.keyOffset(i), rows.keyLength(i))) {
        found.add(rows.bytes, rows.keyOffset(i), rows.keyLength(i), rows.valueOffset(i), rows.valueLength(i))
      }
      i += 1
    }
  }

  private def overridden(newer: List[Layer], hash: Int, key: Array[Byte], offset: Int, length: Int): Boolean = {
    var rest = newer
    while (rest.nonEmpty) {
      if (rest.head.find(hash, key, offset, length) >= 0) return true
      rest = rest.tail
    }
    false
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

  /** All rows in the base; buckets grow with the rows. */
  def fold(content: Content, hashOf: KeyHash): Content =
    if (content.layers.isEmpty) content
    else {
      val layer = Layer.merge(content.layers)
      val old = content.base
      val rawBytes = old.memoryBytes + layer.usedBytes
      val target = math.max(old.buckets, Bucketing.bucketsFor(0, rawBytes))
      val buckets = if (old.buckets == 1) math.max(target, Bucketing.bucketsFor(layer.rows.toLong, 0)) else target
      if (buckets == old.buckets) new Content(foldInto(old, layer), Nil)
      else new Content(rebucket(content, layer, buckets, hashOf), Nil)
    }

  private def foldInto(old: Base, layer: Layer): Base = {
    val rows = Array.tabulate(old.buckets)(i => withoutCleared(old.bucket(i), layer))
    layer.foreachBucket(old.buckets) { (bucket, changed) =>
      rows(bucket) = RowBlock.merge(rows(bucket), changed, dropRemoved = true)
    }
    Base.of(rows)
  }

  private def rebucket(content: Content, layer: Layer, buckets: Int, hashOf: KeyHash): Base = {
    val all = new Layer(layer.rows)
    val old = content.base
    (0 until old.buckets).foreach { b =>
      val rows = withoutCleared(old.bucket(b), layer)
      var i = 0
      while (i < rows.count) {
        all.put(
          hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i)),
          rows.bytes,
          rows.keyOffset(i),
          rows.keyLength(i),
          rows.bytes,
          rows.valueOffset(i),
          rows.valueLength(i))
        i += 1
      }
    }
    foldInto(Base.of(spread(all, buckets)), layer)
  }

  private def spread(all: Layer, buckets: Int): Array[RowBlock] = {
    val rows = Array.fill(buckets)(RowBlock.Empty)
    all.foreachBucket(buckets)((bucket, block) => rows(bucket) = block)
    rows
  }

  private def withoutCleared(rows: RowBlock, layer: Layer): RowBlock =
    if (layer.clearedFamilies.isEmpty) rows
    else {
      val kept = new RowBlock.Builder(rows.bytes.length)
      (0 until rows.count).foreach { i =>
        if (!layer.clearedFamilies(Layer.familyOf(rows.bytes, rows.keyOffset(i)))) kept.addFrom(rows, i)
      }
      kept.result()
    }
}
