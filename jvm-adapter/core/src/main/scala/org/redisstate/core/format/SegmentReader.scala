package org.redisstate.core.format

import scala.collection.mutable

import org.redisstate.core.errors.FormatException

/** Fields of a segment to rows, everything checked against the segment's entry. */
final class SegmentReader(segment: Segment) {
  private val entry = segment.entry

  /** @param block of the field `h`, null when there is none */
  def header(block: Array[Byte]): Header =
    if (!entry.header) {
      if (block != null) bad("it has a header that its entry does not name")
      Header.Empty
    } else {
      if (block == null) bad("its header is missing")
      val header = Header.decode(Block.decode(segment.ident, Header.Field, block))
      if (header.isEmpty) bad("its header is empty")
      if (segment.isSnapshot && (header.families.isEmpty || header.tombstones.nonEmpty)) {
        bad("a snapshot has no family table, or has tombstones")
      }
      if (header.families.exists(_.exists(_.ttl) != (entry.time > 0)))
        bad("its family table does not fit the time of its entry")
      val claimed =
        header.parts.valuesIterator.map(_.toLong).sum + header.ordered.map(_._2.size.toLong).sum
      if (claimed >= entry.blocks || header.parts.keysIterator.exists(_ >= entry.buckets)) {
        bad("its header names more blocks than there are")
      }
      header
    }

  /** Rows of one field. */
  def rows(name: String, block: Array[Byte]): RowBlock = {
    val rows = RowBlock.parse(Block.decode(segment.ident, name, block))
    if (segment.isSnapshot && !rows.isWhole) bad("a snapshot removes or appends")
    rows
  }

  /** Names of the fields of a bucket that can be there, in the order in which they apply. */
  def partNames(header: Header, bucket: Int): Seq[String] =
    if (header.parts.isEmpty) Seq(bucket.toString)
    else bucket.toString +: (1 until header.parts.getOrElse(bucket, 1)).map(p => s"$bucket.$p")

  def orderedNames(header: Header): Seq[String] =
    header.ordered.flatMap { case (family, keys) => keys.indices.map(i => s"$family/$i") }

  /**
   * Returns all rows, in the order in which they apply.
   *
   * @param fields every field of the segment that is there, but the header
   */
  def all(header: Header, headerBlock: Array[Byte], fields: Seq[EncodedField]): Seq[RowBlock] = {
    val whole =
      if (headerBlock == null) fields else fields :+ EncodedField(Header.Field, headerBlock)
    checkBlocks(whole, whole.iterator.map(_.block.length.toLong).sum)
    val known = mutable.HashMap.empty[String, Int]
    (0 until entry.buckets).foreach(b => partNames(header, b).foreach(known(_) = known.size))
    orderedNames(header).foreach(known(_) = known.size)
    val found =
      fields.sortBy(f =>
        known.getOrElse(f.name, bad(s"the field ${f.name.take(40)} does not belong here")))
        .map(f => rows(f.name, f.block))
    checkRows(found.iterator.map(_.count.toLong).sum)
    found
  }

  /**
   * Compares all blocks, the header's too, with the entry.
   *
   * @param heads the first bytes of each block are enough
   * @param bytes of the whole blocks
   */
  def checkBlocks(heads: Seq[EncodedField], bytes: Long): Unit = {
    if (heads.size != entry.blocks) bad(s"${heads.size} of ${entry.blocks} blocks are there")
    if (bytes != entry.bytes) bad("its blocks have another size")
    if (SegmentWriter.checksum(heads) != entry.checksum) bad("the checksum does not match")
  }

  def checkRows(count: Long): Unit =
    if (count != entry.rows) bad(s"it has $count rows, not ${entry.rows}")

  def bad(found: String): Nothing = throw new FormatException(s"${segment.ident}: $found")
}
