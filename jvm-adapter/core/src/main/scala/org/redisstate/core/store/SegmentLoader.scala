package org.redisstate.core.store

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format._
import org.redisstate.core.local._
import org.redisstate.core.protocol.{PartitionClient, Piece}

/**
 * What describes a segment.
 *
 * @param block of the header, null when there is none
 */
private[store] final case class SegmentHead(
    segment: Segment,
    header: Header,
    block: Array[Byte]) {
  def field: Option[EncodedField] = Option(block).map(EncodedField(Header.Field, _))
}

/**
 * Reads segments of one partition into local form, checking everything that comes over the wire.
 */
private[store] final class SegmentLoader(
    client: PartitionClient,
    validator: RowValidator,
    counters: StoreCounters,
    room: Room) {

  /** What describes each of these segments, read in one round trip. */
  def heads(segments: Seq[Segment]): Seq[SegmentHead] = {
    val described = segments.filter(_.entry.header)
    val pieces = described.map(s => Piece(s, Seq(Header.Field), s.entry.bytes / s.entry.blocks))
    val blocks = Piece.grouped(pieces).flatMap(client.fetch).map(_.head)
    val found = described.zip(blocks).toMap
    segments.map { segment =>
      val block = found.getOrElse(segment, null)
      SegmentHead(segment, named(segment)(new SegmentReader(segment).header(block)), block)
    }
  }

  /** A snapshot: its buckets and the blocks of its ordered families are read when they are touched. */
  def base(head: SegmentHead): Base = {
    val source = new SnapshotSource(blocksOf(head))
    Base.remote(head.segment.entry.buckets, source, source.ordered(room), room)
  }

  /**
   * The rows of segments together, as a base: what belongs to a bucket is read from all of them when
   * it is touched.
   *
   * @param segments oldest first; the first stands alone
   */
  def together(segments: Seq[WholeSegment]): Base = {
    val source =
      new MergedSource(segments.map(s => blocksOf(s.head, s.families)), segments.last.families)
    Base.remote(source.buckets, source, source.ordered(room), room)
  }

  /** Lets a base be dropped that has the rows of a snapshot. */
  def attach(base: Base, head: SegmentHead)(
      ordered: Map[Int, OrderedRows] => Map[Int, OrderedRows]): Unit = {
    val source = new SnapshotSource(blocksOf(head))
    base.attach(source, ordered(source.ordered(room)))
  }

  private def blocksOf(head: SegmentHead): SegmentBlocks =
    blocksOf(head, head.header.families.getOrElse(Nil))

  private def blocksOf(head: SegmentHead, families: Seq[Family]): SegmentBlocks =
    new SegmentBlocks(client, this, counters, head, families)

  /** Rows of a field, each of them checked. */
  def decode(
      segment: Segment,
      name: String,
      block: Array[Byte],
      families: Seq[Family]): RowBlock = {
    val rows = named(segment)(new SegmentReader(segment).rows(name, block))
    validated(segment, rows, listsOf(families), validator.of(families))
  }

  private def listsOf(families: Seq[Family]): Set[Int] =
    families.filter(_.multiValue).map(_.id).toSet

  private def validated(
      segment: Segment,
      rows: RowBlock,
      lists: Set[Int],
      rules: RowValidator): RowBlock = {
    var i = 0
    while (i < rows.count) {
      if (!rows.isRemoved(i)) {
        val key = rows.keyOffset(i)
        val list = rows.isAppended(i) || (lists.nonEmpty && lists(Layer.familyOf(rows.bytes, key)))
        if (list) validateElements(segment, rows, i, rules)
        else validate(segment, rows, i, rules, rows.valueOffset(i), rows.valueLength(i))
      }
      i += 1
    }
    rows
  }

  private def validateElements(
      segment: Segment,
      rows: RowBlock,
      i: Int,
      rules: RowValidator): Unit = {
    val from = rows.valueOffset(i)
    val elements = new MsgpackReader(rows.bytes, from, from + rows.valueLength(i))
    while (!elements.atEnd) {
      val length = named(segment)(elements.skipBin())
      validate(segment, rows, i, rules, elements.position - length, length)
    }
  }

  private def validate(
      segment: Segment,
      rows: RowBlock,
      i: Int,
      rules: RowValidator,
      valueOffset: Int,
      valueLength: Int): Unit = {
    val wrong =
      rules.check(rows.bytes, rows.keyOffset(i), rows.keyLength(i), valueOffset, valueLength)
    if (wrong != null) damaged(segment, s"a row does not fit the schema of the operator: $wrong")
  }

  /** What the format finds wrong says where, and what to do. */
  def named[A](segment: Segment)(read: => A): A =
    try read
    catch {
      case e: FormatException =>
        damaged(
          segment,
          e.getMessage.stripPrefix("[REDIS_FORMAT] ").stripSuffix(Block.Advice).stripSuffix("."))
    }

  def damaged(segment: Segment, found: String): Nothing =
    throw new FormatException(s"${segment.ident} of ${client.id}: $found.${Block.Advice}")
}
