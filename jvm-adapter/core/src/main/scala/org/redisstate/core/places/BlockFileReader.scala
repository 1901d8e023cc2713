package org.redisstate.core.places

import java.lang.ref.WeakReference
import java.nio.ByteBuffer
import java.util

import scala.collection.mutable

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.{Block, BlockSigner, Header, Place, RowFilter, Segment}
import org.redisstate.core.ids.PartitionId

/**
 * Reads the blocks of one segment from its region of a file. Offsets and lengths of the region are
 * checked before memory is allocated for them. Keeps the directory. Thread-safe.
 */
private[core] final class BlockFileReader private (
    store: FileStore,
    place: Place.InFile,
    header: Array[Byte],
    chunks: Map[String, RegionChunk],
    @volatile private var fresh: RowFilter) {
  import BlockFileReader._

  /** Filters, as long as a caller holds them. */
  private val lent = new WeakReference(fresh)

  /**
   * Filters of the region. The reader holds them until the first call only.
   *
   * @return None if no caller holds them any more: open again
   */
  def filter: Option[RowFilter] = {
    val found = Option(lent.get)
    fresh = null
    found
  }

  /** Bytes of filters before the first call of `filter`. */
  def freshBytes: Long = {
    val held = fresh
    if (held == null) 0L else held.bytes
  }

  /**
   * Returns the values of fields as Redis would hold them, null where the segment has no such
   * field.
   *
   * @param fields names that the segment's header gives
   * @throws FileMissing if the file does not exist, or is truncated
   */
  def read(fields: Seq[String]): Seq[Array[Byte]] = {
    val spans = fields.map(field => if (field == Header.Field) None else spanOf(field))
    val found = mutable.HashMap.empty[Span, Array[Byte]]
    together(spans.flatten.distinct.sortBy(_.offset)).foreach { group =>
      val from = group.head.offset
      val length = (group.last.end - from).toInt
      val bytes = store.read(place.file, place.offset + from, length)
      group.foreach { span =>
        val at = (span.offset - from).toInt
        found(span) = util.Arrays.copyOfRange(bytes, at, at + span.length)
      }
    }
    fields.zip(spans).map {
      case (Header.Field, _) => header
      case (_, span) => span.map(found).orNull
    }
  }

  private def spanOf(field: String): Option[Span] = {
    val name = FieldName.parse(field)
    chunks.get(name.chunk).flatMap { chunk =>
      val slot = name.number % RegionChunk.Size
      val first = name.number - slot
      var offset = chunk.offset
      (0 until slot).foreach { i =>
        offset += chunk.lengths.applyOrElse(i, Absent)
        offset += partsOf(chunk, name.family, first + i).iterator.map(_.toLong).sum
      }
      val lengths =
        chunk.lengths.applyOrElse(slot, Absent) +: partsOf(chunk, name.family, name.number)
      lengths.lift(name.part).filter(_ > 0).map { length =>
        Span(offset + lengths.iterator.take(name.part).map(_.toLong).sum, length)
      }
    }
  }

  private def partsOf(chunk: RegionChunk, family: Int, bucket: Int): Seq[Int] =
    if (family >= 0) Nil else chunk.parts.getOrElse(bucket, Nil)
}

private[core] object BlockFileReader {

  /** Most bytes between two values that one read brings. */
  private val GapMax = 128 << 10

  /** If more than this share of a range is wanted, as a divisor, the whole range is read. */
  private val WantedShare = 10

  /** Most bytes of one read, unless a single block is larger. */
  private val ReadMax = 8 << 20

  /** Most bytes of a value: the longest block and its signature. */
  private val ValueMax = Block.RawLengthMax + 64

  /** Most bytes of a directory, whatever the number of blocks. */
  private val DirectoryMax = 64L << 20
  private val Absent: Int => Int = _ => 0

  private final case class Span(offset: Long, length: Int) {
    def end: Long = offset + length
  }

  /**
   * Reads the head of a region.
   *
   * @param id the partition that the segment belongs to
   * @throws FileMissing if the file does not exist, or is truncated
   * @throws FormatException if the region is damaged, or of another segment
   */
  def open(
      store: FileStore,
      id: PartitionId,
      segment: Segment,
      place: Place.InFile,
      signer: Option[BlockSigner]): BlockFileReader = {
    def bad(found: String): Nothing = throw new FormatException(
      s"${segment.ident} of $id in the file ${place.file} of ${store.folder}: $found.${Block.Advice}")
    try opened(store, id, segment, place, signer, bad)
    catch {
      case e: FormatException =>
        val found = e.getMessage.stripPrefix("[REDIS_FORMAT] ")
        if (found.contains(place.file)) throw e
        bad(found.stripSuffix(Block.Advice).stripSuffix("."))
    }
  }

  private def opened(
      store: FileStore,
      id: PartitionId,
      segment: Segment,
      place: Place.InFile,
      signer: Option[BlockSigner],
      bad: String => Nothing): BlockFileReader = {
    val blocks = new RegionBlocks(id, segment, signer)
    // The header, the tail and a directory of up to 1 MiB.
    if (place.headBytes > 2L * ValueMax) bad("its place names a head that is too long")
    val begin = place.bytes - place.headBytes
    val head = store.read(place.file, place.offset + begin, place.headBytes)
    val tailAt = tailOf(head, bad)
    val tail = RegionTail.decode(blocks.open(
      RegionTail.Name,
      util.Arrays.copyOfRange(head, tailAt, head.length - RegionBlocks.FooterBytes)))
    val own = RegionTail.of(id, segment, tail.header, tail.directory)
    if (tail != own) bad("its region is that of another segment")
    val headerAt = tailAt - tail.header
    if (headerAt < 0) bad("its tail names a header outside of the region")
    if ((tail.header > 0) != segment.entry.header) bad("its header is not that of the entry")
    val known = directoryOf(store, place, head, begin, begin + headerAt, tail, bad)
    val chunks = decoded(segment, blocks, tail.directory.map(_.name).zip(known), bad)
    val end = tail.directory.headOption.fold(begin + headerAt)(_.offset)
    check(segment, chunks, tail.header, end, signer.nonEmpty, bad)
    val filters = RegionFilters.of(
      segment.entry.buckets,
      chunks.flatMap { case (name, chunk) => chunk.filter.map(name.drop(1).toInt -> _) })
    val header =
      if (tail.header == 0) null else util.Arrays.copyOfRange(head, headerAt, tailAt)
    val kept = chunks.map { case (name, chunk) => name -> chunk.copy(filter = None) }
    new BlockFileReader(store, place, header, kept.toMap, filters)
  }

  /** Decodes the directory; refuses too many bytes of filters. */
  private def decoded(
      segment: Segment,
      blocks: RegionBlocks,
      values: Seq[(String, Array[Byte])],
      bad: String => Nothing): Seq[(String, RegionChunk)] = {
    val chunksMax = (segment.entry.buckets + RegionChunk.Size - 1L) / RegionChunk.Size
    var filterBytes = 0L
    values.map { case (name, value) =>
      val chunk = RegionChunk.decode(blocks.open(name, value))
      chunk.filter.foreach { filter =>
        if (name.contains('/') || name.drop(1).toLong >= chunksMax)
          bad("its directory has a filter of other blocks than buckets")
        filterBytes += filter.toBytes.length
        if (filterBytes > RegionFilters.BytesMax) bad("its directory has too many filters")
      }
      name -> chunk
    }
  }

  private def tailOf(head: Array[Byte], bad: String => Nothing): Int = {
    val magicAt = head.length - RegionBlocks.Magic.length
    val lengthAt = head.length - RegionBlocks.FooterBytes
    if (lengthAt < 0 || !util.Arrays.equals(
        head,
        magicAt,
        head.length,
        RegionBlocks.Magic,
        0,
        RegionBlocks.Magic.length)) bad("its region does not end as one")
    val length = ByteBuffer.wrap(head).getInt(lengthAt)
    if (length <= 0 || length > lengthAt) bad("its region has a tail that does not fit")
    lengthAt - length
  }

  /** Returns the values of the directory blocks; reads those that are not in the head. */
  private def directoryOf(
      store: FileStore,
      place: Place.InFile,
      head: Array[Byte],
      begin: Long,
      end: Long,
      tail: RegionTail,
      bad: String => Nothing): Seq[Array[Byte]] = {
    val all = tail.directory
    val isInOrder = all.isEmpty || (all.head.offset >= RegionBlocks.Magic.length &&
      all.lazyZip(all.drop(1)).forall((a, b) => a.length <= b.offset - a.offset) &&
      all.last.length <= end - all.last.offset)
    val isKnown = all.forall(one => one.length > 0 && IsName.matches(one.name)) &&
      all.map(_.name).distinct.size == all.size
    if (!isInOrder || !isKnown) bad("its tail names directory blocks that cannot be there")
    val first = all.headOption.fold(end)(_.offset)
    if (end - first > DirectoryMax) bad("its directory is too long")
    val before =
      if (first >= begin) Array.emptyByteArray
      else read(store, place, first, (math.min(begin, end) - first).toInt)
    val from = math.min(first, begin)
    all.map { one =>
      val value = new Array[Byte](one.length)
      val at = (one.offset - from).toInt
      val fromBefore = math.max(0, math.min(one.length, before.length - at))
      if (fromBefore > 0) System.arraycopy(before, at, value, 0, fromBefore)
      if (fromBefore < one.length)
        System.arraycopy(
          head,
          (one.offset + fromBefore - begin).toInt,
          value,
          fromBefore,
          one.length - fromBefore)
      value
    }
  }

  private def read(store: FileStore, place: Place.InFile, from: Long, length: Int): Array[Byte] = {
    val bytes = new Array[Byte](length)
    (0 until length by ReadMax).foreach { at =>
      val part = store.read(place.file, place.offset + from + at, math.min(ReadMax, length - at))
      System.arraycopy(part, 0, bytes, at, part.length)
    }
    bytes
  }

  /** Checks that blocks follow each other in the order of the directory, and match the entry. */
  private def check(
      segment: Segment,
      chunks: Seq[(String, RegionChunk)],
      header: Int,
      end: Long,
      isSigned: Boolean,
      bad: String => Nothing): Unit = {
    val entry = segment.entry
    var at = RegionBlocks.Magic.length.toLong
    var blocks = if (header > 0) 1L else 0L
    var bytes = header.toLong
    chunks.foreach { case (name, chunk) =>
      val first = name.drop(name.indexOf('i') + 1).toLong * RegionChunk.Size
      val isOrdered = name.contains('/')
      if (chunk.parts.keysIterator.exists(b =>
          isOrdered || b < first || b >= first + RegionChunk.Size))
        bad("its directory names parts that it cannot have")
      if (chunk.offset != at) bad("its directory names blocks that are not one behind the other")
      val lengths = chunk.lengths.iterator ++ chunk.parts.valuesIterator.flatten
      if (lengths.exists(_ > ValueMax)) bad("its directory names a block that is too long")
      at += chunk.bytes
      blocks += chunk.blocks
      bytes += chunk.bytes
    }
    val signatures = if (isSigned) BlockSigner.ValueOverhead * blocks else 0L
    if (at != end || blocks != entry.blocks || bytes - signatures != entry.bytes)
      bad("its directory is not that of the entry")
  }

  private val IsName = "(?:(?:0|[1-9][0-9]{0,4})/)?i(?:0|[1-9][0-9]{0,9})".r

  /**
   * Groups spans by reads, in order; a group includes gaps that are small, or if much is wanted.
   */
  private def together(spans: Seq[Span]): Seq[Seq[Span]] = {
    val groups = mutable.ArrayBuffer.empty[mutable.ArrayBuffer[Span]]
    val wanted = spans.iterator.map(_.length.toLong).sum
    val isMuch = spans.nonEmpty && wanted * WantedShare > spans.last.end - spans.head.offset
    spans.foreach { span =>
      val gap = if (groups.isEmpty) 0 else span.offset - groups.last.last.end
      val joins = groups.nonEmpty && (isMuch || gap <= GapMax) &&
        span.end - groups.last.head.offset <= ReadMax
      if (joins) groups.last += span else groups += mutable.ArrayBuffer(span)
    }
    groups.iterator.map(_.toSeq).toSeq
  }
}
