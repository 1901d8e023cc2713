package org.redisstate.core.store.loading

import org.redisstate.core.format.{Bucketing, Entry, Family, RowBlock, RowFilter, RowMerge}
import org.redisstate.core.local._
import org.redisstate.core.local.blocks.{OrderedRows, Room}

/**
 * Merged rows of a snapshot and of deltas on it, bucket by bucket: for changes that do not fit into
 * memory. A read costs a block of each segment.
 *
 * @param segments oldest first; nothing is below the first
 * @param families of the version
 * @param once whether all of it is read one time: a bucket may be large then, so that no block is
 *   read for several
 * @param admits whether filters of so many bytes have room
 */
private[store] final class MergedSource(
    segments: Seq[SegmentBlocks],
    families: Seq[Family],
    once: Boolean,
    admits: Long => Boolean)
    extends BucketSource {
  import MergedSource._

  private val hashOf = KeyHash.of(families)
  private val entries = segments.map(_.head.segment.entry)

  val buckets: Int = {
    val most = entries.map(_.buckets).max
    if (once) most else math.max(most, bucketsFor(entries))
  }

  /** Ranges that each segment removes from older ones. */
  private val cleared: Seq[Layer] = segments.map { segment =>
    val layer = new Layer(0)
    segment.head.header.tombstones.foreach(layer.clear)
    layer
  }

  /** The merged rows, and those of one segment on top of them. */
  override val bucketBytes: Long = {
    val ofRows = if (once) Ratio * entries.map(_.bytes).sum / buckets else 0L
    2 * math.max(BucketSource.BytesMax, ofRows) + segments.map(_.blockBytes).max
  }

  override def isInFiles: Boolean = segments.exists(_.isInFile)

  /** Filters of the files, and one made of the rows that are in Redis, which are read for it. */
  override def filter(): RowFilter = {
    val (filed, others) = segments.partition(_.isInFile)
    val known = RowFilter.allOf(filed.map(_.filter()))
    if ((known eq RowFilter.Unknown) || (known eq RowFilter.Unread)) known
    else if (!admits(known.bytes + others.map(_.filterBytes).sum)) RowFilter.Unknown
    else RowFilter.allOf(known +: others.map(_.filterOfRows()))
  }

  override def blockBytes: Long = segments.map(_.blockBytes).max

  override def read(from: Int, until: Int): Array[RowBlock] = read(from until until)

  override def read(wanted: IndexedSeq[Int]): Array[RowBlock] = {
    val rows = Array.fill(wanted.length)(RowBlock.Empty)
    segments.zip(cleared).foreach { case (segment, gone) =>
      val changed = bucketsOf(segment, wanted)
      rows.indices.foreach(i => rows(i) = merged(rows(i), changed(i), gone))
    }
    rows
  }

  private def merged(older: RowBlock, newer: RowBlock, gone: Layer): RowBlock = {
    val left = if (older.count == 0) older else gone.uncleared(older)
    if (newer.count == 0) left
    else if (left.count == 0 && newer.isWhole) newer
    else RowMerge.merge(left, newer, resolve = true)
  }

  /** Returns the rows of a segment for each of these buckets; counts are powers of two. */
  private def bucketsOf(segment: SegmentBlocks, wanted: IndexedSeq[Int]): Array[RowBlock] =
    if (segment.buckets == buckets) segment.read(wanted).toArray
    else splitOf(segment, wanted.toArray)

  private def splitOf(segment: SegmentBlocks, wanted: Array[Int]): Array[RowBlock] = {
    val into = Array.fill(wanted.length)(new RowBlock.Builder(1024))
    segment.read(wanted.map(_ & (segment.buckets - 1)).distinct.sorted.toSeq).foreach { rows =>
      var i = 0
      while (i < rows.count) {
        val hash = hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        val place = java.util.Arrays.binarySearch(wanted, Bucketing.bucket(hash, buckets))
        if (place >= 0) into(place).addFrom(rows, i)
        i += 1
      }
    }
    into.map(_.result())
  }

  /** Ordered families, cut where any segment begins a block. */
  def ordered(room: Room): Map[Int, OrderedRows] =
    hashOf.ordered.iterator.map(family => family -> firstKeys(family)).filter(_._2.nonEmpty).map {
      case (family, keys) =>
        family -> OrderedRows.remote(
          keys,
          (from, until) => readOrdered(family, keys, from, until),
          room)
    }.toMap

  private def firstKeys(family: Int): IndexedSeq[Array[Byte]] = {
    val all = segments.flatMap(_.firstKeys(family)).sortWith(isBelow).toIndexedSeq
    all.indices.filter(i => i == 0 || isBelow(all(i - 1), all(i))).map(all)
  }

  private def isBelow(a: Array[Byte], b: Array[Byte]): Boolean =
    java.util.Arrays.compareUnsigned(a, b) < 0

  private def readOrdered(
      family: Int,
      keys: IndexedSeq[Array[Byte]],
      from: Int,
      until: Int): Array[RowBlock] = {
    val rows = Array.fill(until - from)(RowBlock.Empty)
    segments.zip(cleared).foreach { case (segment, gone) =>
      val changed = rangesOf(segment, family, keys, from, until)
      rows.indices.foreach(i => rows(i) = merged(rows(i), changed(i), gone))
    }
    rows
  }

  /**
   * Returns the rows of a segment for each range between the given first keys; the first range has
   * no lower end.
   */
  private def rangesOf(
      segment: SegmentBlocks,
      family: Int,
      keys: IndexedSeq[Array[Byte]],
      from: Int,
      until: Int): Array[RowBlock] = {
    val own = segment.firstKeys(family)
    val into = Array.fill(until - from)(new RowBlock.Builder(1024))
    if (own.nonEmpty) {
      val first = math.max(0, own.lastIndexWhere(!isBelow(keys(from), _)))
      val end =
        if (until == keys.length) own.length else own.lastIndexWhere(isBelow(_, keys(until))) + 1
      if (first < end) segment.readOrdered(family, first, end).foreach { rows =>
        var range = 0
        for (i <- 0 until rows.count) {
          while (range < into.length && from + range + 1 < keys.length &&
            !isRowBelow(rows, i, keys(from + range + 1))) range += 1
          val isIn = range < into.length && (from == 0 || !isRowBelow(rows, i, keys(from)))
          if (isIn) into(range).addFrom(rows, i)
        }
      }
    }
    into.map(_.result())
  }

  private def isRowBelow(rows: RowBlock, i: Int, key: Array[Byte]): Boolean = {
    val at = rows.keyOffset(i)
    java.util.Arrays
      .compareUnsigned(rows.bytes, at, at + rows.keyLength(i), key, 0, key.length) < 0
  }
}

private[store] object MergedSource {

  /**
   * Returns the number of buckets for segments that may share rows, so that no bucket is too large.
   */
  def bucketsFor(segments: Seq[Entry]): Int =
    Bucketing.bucketsFor(segments.map(_.rows).sum, 2 * segments.map(_.bytes).sum)

  /** Blocks are a fourth of their rows, or more. */
  private val Ratio = 4L
}
