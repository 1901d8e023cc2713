package org.redisstate.core.store.loading

import java.util.BitSet

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.{RowBlock, RowFilter, RowMerge}
import org.redisstate.core.local.BucketSource
import org.redisstate.core.local.blocks.Room

/**
 * Buckets with small deltas over them. All deltas are read in one go when a bucket is asked for, and
 * kept until each bucket was given out. Thread-safe.
 *
 * @param below what the deltas change; without ordered families
 * @param buckets of `below`, at least as many as each delta has
 * @param segments the deltas, oldest first, which remove no ranges
 */
private[store] final class ChangedSource(
    below: BucketSource,
    buckets: Int,
    segments: Seq[WholeSegment],
    reader: WholeReader,
    room: Room)
    extends BucketSource {
  private val grant = segments.iterator.map(s => WholeReader.bytesOf(s.head.segment.entry)).sum

  /** Null while nothing is held. */
  @GuardedBy("this") @volatile private var held: ChangedRows = _

  /** Buckets that were given out of what is held. */
  @GuardedBy("this") private val isOut = new BitSet(buckets)

  override val bucketBytes: Long = below.bucketBytes + BucketSource.BytesMax

  override def heldBytes: Long = {
    val now = held
    if (now == null) 0L else now.bytes
  }

  override def isInFiles: Boolean = below.isInFiles
  override def filter(): RowFilter = below.filter()

  override def unfiltered(index: Int, hash: Int): RowBlock = {
    val changes = changesOf(Nil)
    if (!changes.has(index, hash)) RowBlock.Empty
    else RowMerge.merge(RowBlock.Empty, changes.bucket(index), resolve = true)
  }

  override def blockBytes: Long = below.blockBytes

  override def read(from: Int, until: Int): Array[RowBlock] = read(from until until)

  override def read(wanted: IndexedSeq[Int]): Array[RowBlock] = {
    val rows = below.read(wanted)
    val changes = changesOf(wanted)
    rows.indices.foreach { i =>
      val newer = changes.bucket(wanted(i))
      if (newer.count > 0) rows(i) = RowMerge.merge(rows(i), newer, resolve = true)
    }
    rows
  }

  /** @param wanted buckets that are given out */
  private def changesOf(wanted: Seq[Int]): ChangedRows = synchronized {
    if (held == null) Room.taking(room, grant) { held = readAll() }
    val changes = held
    wanted.foreach(isOut.set)
    if (isOut.cardinality == buckets) {
      held = null
      isOut.clear()
    }
    changes
  }

  private def readAll(): ChangedRows =
    new ChangedRows(reader.read(segments).flatMap(_._2).toArray, buckets)
}
