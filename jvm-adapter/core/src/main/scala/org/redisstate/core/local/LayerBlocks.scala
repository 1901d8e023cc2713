package org.redisstate.core.local

import org.redisstate.core.format.RowBlock

/** The rows of a layer as blocks; for one pass in one thread. */
private[local] final class LayerBlocks(layer: Arena) {
  private val rows = new RowBlock.Builder(16 << 10)

  def block(entries: Array[Int]): RowBlock = block(entries, 0, entries.length)

  private[local] def block(entries: Array[Int], from: Int, until: Int): RowBlock = {
    rows.reset()
    var i = from
    while (i < until) {
      add(entries(i))
      i += 1
    }
    rows.result()
  }

  private def add(entry: Int): Unit = {
    val bytes = layer.bytes
    val key = layer.keyOffset(entry)
    val keyLength = layer.keyLength(entry)
    val value = layer.valueOffset(entry)
    val valueLength = layer.valueLength(entry)
    if (layer.isRemoved(entry)) rows.addRemoved(bytes, key, keyLength)
    else if (layer.isAppended(entry))
      rows.addAppended(bytes, key, keyLength, bytes, value, valueLength)
    else rows.add(bytes, key, keyLength, bytes, value, valueLength)
  }
}

/**
 * Rows of a layer by bucket, for one pass in one thread.
 *
 * @param entries all that live
 * @param without families that are left out
 */
private[local] final class LayerBuckets(
    layer: Arena,
    entries: Array[Int],
    buckets: Int,
    without: Set[Int]) {
  private val blocks = new LayerBlocks(layer)
  private val order = new EntrySort(layer)
  private val ends = new Array[Int](buckets + 1)
  private val grouped = groupedByBucket(wanted)

  /** The rows of a bucket in key order. */
  def rows(bucket: Int): RowBlock = {
    val from = ends(bucket)
    val until = ends(bucket + 1)
    if (from == until) RowBlock.Empty
    else {
      order.sort(grouped, from, until)
      blocks.block(grouped, from, until)
    }
  }

  private def wanted: Array[Int] =
    if (without.isEmpty) entries
    else entries.filterNot(e => without(StoredKey.familyOf(layer.bytes, layer.keyOffset(e))))

  /** Counting sort; the entries of bucket b stand from `ends(b)` until `ends(b + 1)` then. */
  private def groupedByBucket(all: Array[Int]): Array[Int] = {
    val bucketOf = new Array[Int](all.length)
    var i = 0
    while (i < all.length) {
      bucketOf(i) = layer.hashOf(all(i)) & (buckets - 1)
      ends(bucketOf(i)) += 1
      i += 1
    }
    i = 1
    while (i <= buckets) {
      ends(i) += ends(i - 1)
      i += 1
    }
    val grouped = new Array[Int](all.length)
    i = all.length - 1
    while (i >= 0) {
      ends(bucketOf(i)) -= 1
      grouped(ends(bucketOf(i))) = all(i)
      i -= 1
    }
    grouped
  }
}
