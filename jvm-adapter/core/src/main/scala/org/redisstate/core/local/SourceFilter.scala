package org.redisstate.core.local

import org.redisstate.core.format.RowFilter
import org.redisstate.core.local.blocks.Room

/**
 * The filter of a base's source in files, read when it is needed first. Thread-safe: an answer is
 * of one source and its own filter, whatever source the base has meanwhile.
 *
 * @param room asked before a filter is kept
 */
private[local] final class SourceFilter(room: Room) {
  import SourceFilter._

  /** Null until a missing bucket of a source in files was asked for. */
  @volatile private var known: Filtered = _

  /** Bytes of the filter that is kept. */
  def bytes: Long = {
    val now = known
    if (now == null) 0L else now.rows.bytes
  }

  /** Returns a source with its filter; null where it is not in files. */
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

  /** Lets go of the filter. */
  def forget(): Unit = known = null
}

private[local] object SourceFilter {

  /** A source with the filter of its rows. */
  final class Filtered(val source: BucketSource, val rows: RowFilter)
}
