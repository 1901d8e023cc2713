package org.redisstate.core.store.loading

import org.redisstate.core.format._
import org.redisstate.core.local._
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
  val decoder: SegmentDecoder = new SegmentDecoder(io.id, validator)

  /** Reads the descriptions of these segments in one round trip. */
  def heads(segments: Seq[Segment]): Seq[SegmentHead] = {
    val described = segments.filter(_.entry.header)
    val pieces = described.map(s => Piece(s, Seq(Header.Field), s.entry.bytes / s.entry.blocks))
    val blocks = Piece.grouped(pieces).flatMap(io.fetch).map(_.head)
    val found = described.zip(blocks).toMap
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
    val source =
      new MergedSource(
        segments.map(s => blocksOf(s.head, s.families)),
        segments.last.families,
        once)
    Base.remote(source.buckets, source, source.ordered(room), room)
  }

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
