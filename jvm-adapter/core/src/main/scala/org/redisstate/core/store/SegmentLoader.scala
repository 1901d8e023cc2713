package org.redisstate.core.store

import scala.collection.mutable

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
    counters: StoreCounters) {

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

  /** The buckets of a snapshot without ordered families. */
  def source(head: SegmentHead, grown: () => Unit): BucketSource = new SnapshotSource(head, grown)

  /** A snapshot: its buckets and the blocks of its ordered families are read when they are touched. */
  def base(head: SegmentHead, grown: () => Unit): Base = {
    val source = new SnapshotSource(head, grown)
    Base.remote(head.segment.entry.buckets, source, source.ordered())
  }

  /** Rows of a field, each of them checked. */
  def decode(
      segment: Segment,
      name: String,
      block: Array[Byte],
      families: Seq[Family]): RowBlock = {
    val rows = named(segment)(new SegmentReader(segment).rows(name, block))
    validated(segment, rows, listsOf(families), validator.of(families))
  }

  /** Buckets of a snapshot; when the last one came, all of it is compared with the entry. */
  private final class SnapshotSource(head: SegmentHead, grown: () => Unit) extends BucketSource {
    private val segment = head.segment
    private val header = head.header
    private val reader = new SegmentReader(segment)
    private val families = header.families.getOrElse(Nil)

    /** Headers of the blocks that came, by name, until all of it is checked. Guarded by itself, as `chunks`. */
    private val heads = mutable.HashMap.empty[String, EncodedField]
    private val chunks = mutable.HashSet.empty[String]
    private val chunksWanted = chunksOf(segment.entry.buckets, Base.ChunkBuckets) +
      header.ordered.map(f => chunksOf(f._2.length, OrderedRun.ChunkBlocks)).sum
    @volatile private var isChecked = false

    override def read(from: Int, until: Int): Array[RowBlock] = {
      counters.bucketsLoaded.addAndGet((until - from).toLong)
      val names = (from until until).map(reader.partNames(header, _))
      val fetched = client.fetch(segment, names.flatten)
      val blocks = fetched.iterator
      val rows = names.map { parts =>
        parts
          .map(name => part(name, blocks.next()))
          .reduceLeft((older, newer) => RowBlock.merge(older, newer, resolve = false))
      }.toArray
      came(from.toString, names.flatten.zip(fetched))
      rows
    }

    private def chunksOf(all: Int, each: Int): Int = (all + each - 1) / each

    /** Chunks come from several threads: the one that brings the last one checks, and no other meanwhile. */
    private def came(chunk: String, blocks: Seq[(String, Array[Byte])]): Unit = {
      if (!isChecked) heads.synchronized {
        if (!isChecked) {
          blocks.foreach { case (name, block) =>
            if (block != null) {
              val head = java.util.Arrays.copyOf(block, Block.HeaderBytes)
              heads.update(name, EncodedField(name, head))
            }
          }
          chunks += chunk
          if (chunks.size == chunksWanted) checkWhole()
        }
      }
      grown()
    }

    private def part(name: String, block: Array[Byte]): RowBlock =
      if (block == null) RowBlock.Empty else decode(segment, name, block, families)

    def ordered(): Map[Int, OrderedRows] = header.ordered.map { case (family, firstKeys) =>
      family -> OrderedRows.remote(
        firstKeys,
        (from, until) => blocks(family, firstKeys, from, until))
    }.toMap

    private def blocks(
        family: Int,
        firstKeys: Seq[Array[Byte]],
        from: Int,
        until: Int): Array[RowBlock] = {
      counters.bucketsLoaded.addAndGet((until - from).toLong)
      val names = (from until until).map(i => s"$family/$i")
      val fetched = names.zip(client.fetch(segment, names))
      val rows = fetched.map { case (name, block) => part(name, block) }.toArray
      rows.indices.foreach { i =>
        if (!OrderedRows.fits(rows(i), firstKeys(from + i), firstKeys.lift(from + i + 1)))
          damaged(segment, s"the blocks of family $family are not in key order")
      }
      came(s"$family/$from", fetched)
      rows
    }

    /** The caller holds the lock. */
    private def checkWhole(): Unit = {
      val all = heads.values.toSeq ++ head.field
      if (all.size != segment.entry.blocks)
        damaged(segment, s"${all.size} of ${segment.entry.blocks} blocks are there")
      if (SegmentWriter.checksum(all) != segment.entry.checksum)
        damaged(segment, "the checksum does not match")
      isChecked = true
      heads.clear()
      chunks.clear()
    }
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
    catch { case e: FormatException => damaged(segment, e.getMessage) }

  private def damaged(segment: Segment, found: String): Nothing =
    throw new FormatException(
      s"${segment.ident} of ${client.id}: $found. Nothing of it was used. Restore that " +
        s"Redis, or rewind the checkpoint below batch ${segment.version}.")
}
