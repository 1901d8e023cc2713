package org.redisstate.core.store.loading

import org.redisstate.core.format._
import org.redisstate.core.local._
import org.redisstate.core.local.blocks.{OrderedRows, Room}
import org.redisstate.core.protocol.{Piece, SegmentIo}
import org.redisstate.core.store.resources.StoreCounters

/**
 * Reads segments of one partition into local form; what comes over the wire passes the decoder.
 */
private[store] final class SegmentLoader(
    io: SegmentIo,
    validator: RowValidator,
    counters: StoreCounters,
    room: Room) {
  import SegmentLoader._

  private val decoder = new SegmentDecoder(io, validator)

  /** Reads segments as a whole. */
  val whole: WholeReader = new WholeReader(io, decoder, counters)

  /**
   * Reads the descriptions of these segments in one round trip.
   *
   * @param all whether segments without a description are looked at too
   * @throws org.redisstate.core.protocol.SegmentGone when one that is looked at has not all its
   * blocks
   */
  def heads(segments: Seq[Segment], all: Boolean = false): Seq[SegmentHead] = {
    val asked = segments.filter(s => s.entry.header || (all && s.entry.blocks > 0))
    val pieces = asked.map(s => Piece(s, Seq(Header.Field), s.entry.bytes / s.entry.blocks))
    val blocks = Piece.grouped(pieces).flatMap(io.fetch).map(_.head)
    val found = asked.zip(blocks).filter(_._1.entry.header).toMap
    segments.map { segment =>
      val block = found.getOrElse(segment, null)
      SegmentHead(segment, decoder.named(segment)(new SegmentReader(segment).header(block)), block)
    }
  }

  /** A snapshot: its buckets and the blocks of its ordered families are read when they are touched. */
  def base(head: SegmentHead): Base = {
    val source = new SnapshotSource(blocksOf(head))
    Base.remote(head.segment.entry.buckets, source, source.ordered(room), room)
  }

  /**
   * Returns the merged rows of segments as a base: a bucket is read from all of them at its first
   * use.
   *
   * @param segments oldest first; the first stands alone
   * @param once as `MergedSource` has it
   */
  def together(segments: Seq[WholeSegment], once: Boolean): Base = {
    val source = merged(segments, once)
    Base.remote(source.buckets, source, source.ordered(room), room)
  }

  /**
   * Returns what `together` does, with small deltas over it whose blocks are read once for all
   * buckets.
   *
   * @param bottom a snapshot, if they stand on one
   * @param large deltas over it, oldest first
   * @param small newer ones that memory has room for, oldest first
   * @param live rows of the version
   * @return None if the small ones cannot be spread over the buckets below them, or would crowd them
   */
  def changed(
      bottom: Option[WholeSegment],
      large: Seq[WholeSegment],
      small: Seq[WholeSegment],
      live: Long): Option[Base] =
    if (small.isEmpty || small.exists(hasRanges)) None
    else {
      val entries = small.map(_.head.segment.entry)
      val (buckets, below) = (bottom.toSeq ++ large) match {
        case Nil =>
          // A delta that was sent in parts has the buckets that its first part made its writer expect.
          val own = Bucketing.bucketsFor(live, 2 * entries.map(_.bytes).sum)
          math.max(own, entries.map(_.buckets).max) -> BucketSource.Empty
        case Seq(one) if one.head.segment.isSnapshot =>
          one.head.segment.entry.buckets -> new SnapshotSource(blocksOf(one.head))
        case all =>
          val source = merged(all, once = false)
          source.buckets -> source
      }
      val wanted =
        MergedSource.bucketsFor((bottom.toSeq ++ large).map(_.head.segment.entry) ++ entries)
      if (entries.exists(_.buckets > buckets) || wanted > CrowdedMax * buckets)
        None
      else
        Some(Base.remote(
          buckets,
          new ChangedSource(below, buckets, small, whole, room),
          Map.empty,
          room))
    }

  /** Returns whether the rows of a delta are not those of its buckets alone. */
  private def hasRanges(delta: WholeSegment): Boolean =
    delta.head.header.tombstones.nonEmpty || delta.families.exists(_.kind.ordered)

  private def merged(segments: Seq[WholeSegment], once: Boolean): MergedSource =
    new MergedSource(
      segments.map(s => blocksOf(s.head, s.families)),
      segments.last.families,
      once,
      room.admits(_))

  /** Attaches a snapshot to a base with the same rows, so that the base can be dropped. */
  def attach(base: Base, head: SegmentHead)(
      ordered: Map[Int, OrderedRows] => Map[Int, OrderedRows]): Unit = {
    val source = new SnapshotSource(blocksOf(head))
    base.attach(source, ordered(source.ordered(room)))
  }

  private def blocksOf(head: SegmentHead): SegmentBlocks =
    blocksOf(head, head.header.families.getOrElse(Nil))

  private def blocksOf(head: SegmentHead, families: Seq[Family]): SegmentBlocks =
    new SegmentBlocks(io, decoder, counters, head, families)
}

private object SegmentLoader {

  /** Rows of deltas may fill buckets up to so many times of what a writer would put there. */
  private val CrowdedMax = 4
}
