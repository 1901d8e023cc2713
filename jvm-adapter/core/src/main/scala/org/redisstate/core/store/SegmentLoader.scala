package org.redisstate.core.store

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format._
import org.redisstate.core.local._
import org.redisstate.core.protocol.PartitionClient

/**
 * Reads segments of one partition into local form, checking everything that comes over the wire.
 */
private[store] final class SegmentLoader(
    client: PartitionClient,
    validator: RowValidator,
    counters: StoreCounters) {

  def header(segment: Segment): Header = headerOf(segment, headerBlock(segment))

  private def headerOf(segment: Segment, block: Array[Byte]): Header =
    named(segment)(new SegmentReader(segment).header(block))

  private def headerBlock(segment: Segment): Array[Byte] =
    if (segment.entry.header) client.fetch(segment, Seq(Header.Field)).head else null

  /**
   * The buckets of a snapshot without ordered families.
   *
   * @param grown told when buckets came into memory
   */
  def source(segment: Segment, header: Header, grown: () => Unit): BucketSource =
    new SnapshotSource(segment, header, grown)

  /** All rows of a segment; count and checksum are compared with its entry. */
  def layer(segment: Segment, known: Seq[Family]): (Header, Layer) = {
    val entry = segment.entry
    val layer = new Layer(math.min(entry.rows, 1 << 20).toInt)
    if (entry.blocks == 0) return (Header.Empty, layer)
    val reader = new SegmentReader(segment)
    val block = headerBlock(segment)
    val head = headerOf(segment, block)
    val names =
      (0 until entry.buckets).flatMap(reader.partNames(head, _)) ++ reader.orderedNames(head)
    val fields = names.zip(client.fetch(segment, names)).collect {
      case (n, b) if b != null => EncodedField(n, b)
    }
    val blocks = named(segment)(reader.all(head, block, fields))
    head.tombstones.foreach(layer.clear)
    val families = head.families.getOrElse(known)
    val hashOf = KeyHash.of(families)
    val lists = listsOf(families)
    blocks.foreach(rows => addAll(layer, validated(segment, rows, lists), hashOf))
    counters.bucketsLoaded.addAndGet(fields.size.toLong)
    (head, layer.trimmed)
  }

  private def addAll(layer: Layer, rows: RowBlock, hashOf: KeyHash): Unit = {
    var i = 0
    while (i < rows.count) {
      val key = rows.keyOffset(i)
      val length = rows.keyLength(i)
      val hash = hashOf(rows.bytes, key, length)
      if (rows.isRemoved(i)) layer.remove(hash, rows.bytes, key, length)
      else if (rows.isAppended(i)) {
        layer.putAppended(
          hash,
          rows.bytes,
          key,
          length,
          rows.bytes,
          rows.valueOffset(i),
          rows.valueLength(i))
      } else layer.put(
        hash,
        rows.bytes,
        key,
        length,
        rows.bytes,
        rows.valueOffset(i),
        rows.valueLength(i))
      i += 1
    }
  }

  /** Buckets of a snapshot; when the last one came, all of it is compared with the entry. */
  private final class SnapshotSource(segment: Segment, header: Header, grown: () => Unit)
      extends BucketSource {
    private val reader = new SegmentReader(segment)
    private val lists = listsOf(header.families.getOrElse(Nil))
    private val heads = new ConcurrentHashMap[String, EncodedField]
    private val chunks = ConcurrentHashMap.newKeySet[Int]

    override def read(from: Int, until: Int): Array[RowBlock] = {
      counters.bucketsLoaded.addAndGet((until - from).toLong)
      val names = (from until until).map(reader.partNames(header, _))
      val blocks = client.fetch(segment, names.flatten).iterator
      val rows = names.map { parts =>
        parts
          .map(name => part(name, blocks.next()))
          .reduceLeft((older, newer) => RowBlock.merge(older, newer, resolve = false))
      }.toArray
      chunks.add(from)
      if (chunks.size * Base.ChunkBuckets >= segment.entry.buckets) checkWhole()
      grown()
      rows
    }

    private def part(name: String, block: Array[Byte]): RowBlock =
      if (block == null) RowBlock.Empty
      else {
        val rows = named(segment)(reader.rows(name, block))
        heads.put(name, EncodedField(name, java.util.Arrays.copyOf(block, Block.HeaderBytes)))
        validated(segment, rows, lists)
      }

    private def checkWhole(): Unit = {
      val all = heads.values.asScala.toSeq :+ EncodedField(Header.Field, headerBlock(segment))
      if (all.size != segment.entry.blocks)
        damaged(segment, s"${all.size} of ${segment.entry.blocks} blocks are there")
      if (SegmentWriter.checksum(all) != segment.entry.checksum)
        damaged(segment, "the checksum does not match")
    }
  }

  private def listsOf(families: Seq[Family]): Set[Int] =
    families.filter(_.multiValue).map(_.id).toSet

  private def validated(segment: Segment, rows: RowBlock, lists: Set[Int]): RowBlock = {
    var i = 0
    while (i < rows.count) {
      if (!rows.isRemoved(i)) {
        val key = rows.keyOffset(i)
        val list = rows.isAppended(i) || (lists.nonEmpty && lists(Layer.familyOf(rows.bytes, key)))
        if (list) validateElements(segment, rows, i)
        else validate(segment, rows, i, rows.valueOffset(i), rows.valueLength(i))
      }
      i += 1
    }
    rows
  }

  private def validateElements(segment: Segment, rows: RowBlock, i: Int): Unit = {
    val from = rows.valueOffset(i)
    val elements = new MsgpackReader(rows.bytes, from, from + rows.valueLength(i))
    while (!elements.atEnd) {
      val length = named(segment)(elements.skipBin())
      validate(segment, rows, i, elements.position - length, length)
    }
  }

  private def validate(
      segment: Segment,
      rows: RowBlock,
      i: Int,
      valueOffset: Int,
      valueLength: Int): Unit = {
    val wrong =
      validator.check(rows.bytes, rows.keyOffset(i), rows.keyLength(i), valueOffset, valueLength)
    if (wrong != null) damaged(segment, s"a row does not fit the schema of the operator: $wrong")
  }

  /** What the format finds wrong says where, and what to do. */
  private def named[A](segment: Segment)(read: => A): A =
    try read
    catch { case e: FormatException => damaged(segment, e.getMessage) }

  private def damaged(segment: Segment, found: String): Nothing =
    throw new FormatException(
      s"${segment.ident} of ${client.id}: $found. Nothing of it was used. Restore that " +
        s"Redis, or rewind the checkpoint below batch ${segment.version}.")
}
