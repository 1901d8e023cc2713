package org.redisstate.core.local

import org.redisstate.core.format.{RowBlock, RowFilter}
import org.redisstate.core.local.blocks.Room

/** Reads buckets of a base that are not in memory, from Redis or from files. */
trait BucketSource {

  /** Returns the rows of the buckets [from, until), validated; for any thread. */
  def read(from: Int, until: Int): Array[RowBlock]

  /**
   * Returns the rows of buckets that are ascending, and need not be neighbours; otherwise as above.
   */
  def read(wanted: IndexedSeq[Int]): Array[RowBlock] = wanted.flatMap(i => read(i, i + 1)).toArray

  /** True if a read may wait for a file, not only for Redis. */
  def isInFiles: Boolean = false

  /** Approximate bytes of a stored bucket. */
  def blockBytes: Long = BucketSource.AverageBytes

  /** Approximate bytes of a bucket while it is read. */
  def bucketBytes: Long = BucketSource.BytesMax

  /** Bytes of rows that are kept for later reads. */
  def heldBytes: Long = 0L

  /** Reads the filters of the rows in files. */
  def filter(): RowFilter = RowFilter.Unknown

  /** Returns rows of a bucket that `filter` does not cover, at least those with a denied hash. */
  def unfiltered(index: Int, hash: Int): RowBlock = RowBlock.Empty
}

object BucketSource {

  /** Buckets without rows. */
  val Empty: BucketSource = new BucketSource {
    override def read(from: Int, until: Int): Array[RowBlock] =
      Array.fill(until - from)(RowBlock.Empty)
  }

  /** Most bytes of a bucket while it is read. */
  val BytesMax: Long = Room.BlockBytesMax

  /**
   * Estimated bytes of a bucket that was never seen: buckets fill up to the maximum and are then
   * split.
   */
  val AverageBytes: Long = 12L << 10
}

/**
 * The filter of a base's source in files, read at its first use. Thread-safe: an answer is of one
 * source and its own filter, even if the base gets another source meanwhile.
 *
 * @param room asked before a filter is kept
 */
private[local] final class SourceFilter(room: Room) {
  import SourceFilter._

  /** Null until a missing bucket of a source in files is looked up. */
  @volatile private var known: Filtered = _

  /** Bytes of the kept filter. */
  def bytes: Long = {
    val now = known
    if (now == null) 0L else now.rows.bytes
  }

  /** Returns a source with its filter; null if the source is not in files. */
  def of(source: BucketSource): Filtered = {
    val now = known
    if (now != null && (now.source eq source)) now
    else if (!source.isInFiles) null
    else read(source)
  }

  private def read(source: BucketSource): Filtered = synchronized {
    val now = known
    if (now != null && (now.source eq source)) now
    else {
      val found = source.filter()
      Room.taking(room, found.bytes) {
        val kept = if (room.admits(found.bytes)) found else RowFilter.Unknown
        val filtered = new Filtered(source, kept)
        known = filtered
        filtered
      }
    }
  }

  /** Notes a successful read: a filter that could not be read before is tried again. */
  def worked(): Unit = {
    val now = known
    if (now != null && (now.rows eq RowFilter.Unread)) known = null
  }

  /** Frees the filter. */
  def forget(): Unit = known = null
}

private[local] object SourceFilter {

  /** A source with the filter of its rows. */
  final class Filtered(val source: BucketSource, val rows: RowFilter)
}
