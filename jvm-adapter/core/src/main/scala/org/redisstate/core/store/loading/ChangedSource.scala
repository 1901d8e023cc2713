package org.redisstate.core.store.loading

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.{Bucketing, RowBlock, Tombstone}
import org.redisstate.core.local.{BucketSource, Layer, Room}

/**
 * Buckets with small deltas over them. All deltas are read in one go when a bucket is asked for, and
 * kept until each bucket was given out. Thread-safe.
 *
 * @param below what the deltas change; without ordered families
 * @param buckets of `below`, at least as many as each delta has
 * @param segments the deltas, oldest first
 */
private[store] final class ChangedSource(
    below: BucketSource,
    buckets: Int,
    segments: Seq[WholeSegment],
    reader: WholeReader,
    room: Room)
    extends BucketSource {
  import ChangedSource._

  private val grant = segments.iterator.map(s => WholeReader.bytesOf(s.head.segment.entry)).sum

  /** All ranges that the deltas remove from what is below them. */
  private val cleared = clearing(segments.flatMap(_.head.header.tombstones))

  /** Null while nothing is held. */
  @GuardedBy("this") @volatile private var held: Changes = _

  override val bucketBytes: Long = below.bucketBytes + BucketSource.BytesMax

  override def heldBytes: Long = {
    val now = held
    if (now == null) 0L else now.bytes
  }

  override def read(from: Int, until: Int): Array[RowBlock] = {
    val rows = below.read(from, until)
    val newer = changes(from, until)
    rows.indices.foreach { i =>
      val left = cleared.uncleared(rows(i))
      rows(i) = if (newer(i).count == 0) left else RowBlock.merge(left, newer(i), resolve = true)
    }
    rows
  }

  private def changes(from: Int, until: Int): Array[RowBlock] = synchronized {
    if (held == null) Room.taking(room, grant) { held = read() }
    val found = held.taken(from, until)
    if (held.isComplete) held = null
    found
  }

  private def read(): Changes = {
    // Runs of as many segments each are merged, as in a merge sort, so that few arrays are here at once.
    var runs = List.empty[Run]
    reader.read(segments).foreach { case (head, blocks) =>
      var newest = new Run(1, spread(head, blocks), head.header.tombstones)
      while (runs.nonEmpty && runs.head.segments <= newest.segments) {
        newest = runs.head.under(newest)
        runs = runs.tail
      }
      runs ::= newest
    }
    val all = runs.reduceLeftOption((newer, older) => older.under(newer))
    new Changes(all.fold(nothing)(_.rows))
  }

  private def nothing: Array[RowBlock] = Array.fill(buckets)(RowBlock.Empty)

  /** The rows of a segment in the buckets below. */
  private def spread(head: SegmentHead, blocks: Seq[WholeBlock]): Array[RowBlock] = {
    val rows = nothing
    val parts = new Array[RowBlock.Builder](buckets / head.segment.entry.buckets)
    blocks.filter(_.rows.count > 0).foreach { block =>
      if (parts.length == 1) add(rows, Bucketing.bucket(block.hashes(0), buckets), block.rows)
      else {
        val first = Bucketing.bucket(block.hashes(0), head.segment.entry.buckets)
        split(block, parts, head.segment.entry.buckets)
        parts.indices.filter(parts(_) != null).foreach { p =>
          add(rows, p * head.segment.entry.buckets + first, parts(p).result())
          parts(p) = null
        }
      }
    }
    rows
  }

  /** Bucket counts are powers of two: the rows of a block go to every `from`-th bucket below. */
  private def split(block: WholeBlock, parts: Array[RowBlock.Builder], from: Int): Unit = {
    val bytes = block.rows.bytes.length / parts.length + PartBytes
    var i = 0
    while (i < block.rows.count) {
      val p = Bucketing.bucket(block.hashes(i), buckets) / from
      if (parts(p) == null) parts(p) = new RowBlock.Builder(bytes)
      parts(p).addFrom(block.rows, i)
      i += 1
    }
  }

  /** Later parts of a bucket are newer. */
  private def add(rows: Array[RowBlock], bucket: Int, more: RowBlock): Unit =
    rows(bucket) =
      if (rows(bucket).count == 0) more else RowBlock.merge(rows(bucket), more, resolve = false)
}

private[store] object ChangedSource {
  private val PartBytes = 64
  private val PlaceBytes = 4L

  private def clearing(ranges: Seq[Tombstone]): Layer = {
    val layer = new Layer(0)
    ranges.foreach(layer.clear)
    layer
  }

  /** Changes of neighbouring segments. */
  private final class Run(
      val segments: Int,
      val rows: Array[RowBlock],
      val tombstones: Seq[Tombstone]) {

    /** These changes with newer ones over them. */
    def under(newer: Run): Run = {
      val gone = clearing(newer.tombstones)
      rows.indices.foreach(i => rows(i) = merged(gone.uncleared(rows(i)), newer.rows(i)))
      new Run(segments + newer.segments, rows, tombstones ++ newer.tombstones)
    }

    private def merged(older: RowBlock, newer: RowBlock): RowBlock =
      if (newer.count == 0) older
      else if (older.count == 0) newer
      else RowBlock.merge(older, newer, resolve = false)
  }

  /** The changes of each bucket; notes which of them were given out. */
  private final class Changes(rows: Array[RowBlock]) {
    private val isOut = new java.util.BitSet(rows.length)
    val bytes: Long =
      rows.iterator.filter(_.count > 0).map(_.memoryBytes).sum + PlaceBytes * rows.length

    def isComplete: Boolean = isOut.cardinality == rows.length

    def taken(from: Int, until: Int): Array[RowBlock] = {
      isOut.set(from, until)
      rows.slice(from, until)
    }
  }
}
