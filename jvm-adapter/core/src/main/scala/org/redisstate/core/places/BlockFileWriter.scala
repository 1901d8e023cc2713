package org.redisstate.core.places

import java.nio.ByteBuffer

import scala.collection.mutable

import org.redisstate.core.errors.InternalException
import org.redisstate.core.format.{
  Block,
  BlockSigner,
  EncodedField,
  Family,
  Header,
  Place,
  Segment,
  SegmentReader
}
import org.redisstate.core.ids.PartitionId

/** A segment in a file, with the bytes at the end of its region, to be read back. */
private[core] final case class WrittenRegion(
    segment: Segment,
    place: Place.InFile,
    head: Array[Byte])

/**
 * Writes segments into a block file, one region after the other (docs/format.md, section 17). For
 * one thread.
 *
 * @param id partition of the segments
 * @param file name of the file
 */
private[core] final class BlockFileWriter(
    sink: FileSink,
    id: PartitionId,
    file: String,
    signer: Option[BlockSigner],
    compress: Boolean = true) {
  import BlockFileWriter._

  private var at = 0L

  /** Bytes of the regions so far. */
  def bytes: Long = at

  /**
   * Writes a segment.
   *
   * @param headerValue of the field `h`, as Redis holds it; None without one
   * @param values of all fields in the order of [[BlockFileWriter.names]], with the names of absent
   *   ones left out or null; as Redis holds them
   * @throws org.redisstate.core.errors.FormatException if they are not those of the entry
   */
  def write(
      segment: Segment,
      headerValue: Option[Array[Byte]],
      values: Iterator[(String, Array[Byte])]): WrittenRegion = {
    val region = new OpenRegion(segment, RegionFilters.ByBucket(segment.entry.buckets))
    values.foreach { case (name, value) => if (value != null) region.add(name, value) }
    headerValue.foreach(region.add(Header.Field, _))
    region.end(segment)
  }

  /**
   * Begins a region whose blocks come one by one.
   *
   * @param segment whose ident counts; its entry need not be known yet
   * @param families of its rows
   */
  def begin(segment: Segment, families: Seq[Family]): OpenRegion =
    new OpenRegion(segment, RegionFilters.ByFamily.of(families))

  /** A region under construction; the writer does nothing else until it ends. */
  final class OpenRegion private[BlockFileWriter] (
      begun: Segment,
      hashing: RegionFilters.Hashing) {
    private val blocks = new RegionBlocks(id, begun, signer)
    private val start = at
    private val checks = mutable.ArrayBuffer.empty[EncodedField]
    private val directory = new Directory(new RegionFilters.Maker(begun.ident, hashing))
    private var header = Option.empty[Array[Byte]]
    private var plainBytes = 0L
    put(RegionBlocks.Magic)

    /**
     * Adds the value of a field as Redis would hold it, in the order of a region; the header may
     * come at any time.
     */
    def add(name: String, value: Array[Byte]): Unit =
      add(name, value, blocks.plain(name, value))

    /** Adds a block without a signature. */
    def addBlock(field: EncodedField): Unit =
      add(field.name, blocks.signed(field.name, field.block), field.block)

    /** @param block without the signature that `value` has */
    private def add(name: String, value: Array[Byte], block: Array[Byte]): Unit = {
      plainBytes += block.length
      checks += EncodedField(name, java.util.Arrays.copyOf(block, Block.HeaderBytes))
      if (name == Header.Field) header = Some(value)
      else {
        directory.add(name, at - start, value.length, block)
        put(value)
      }
    }

    /**
     * Ends the region.
     *
     * @throws org.redisstate.core.errors.FormatException if the blocks are not those of the entry
     */
    def end(segment: Segment): WrittenRegion = {
      new SegmentReader(segment).checkBlocks(checks.toSeq, plainBytes)
      val head = headOf(blocks, segment, header, directory.chunks, at - start)
      put(head.bytes)
      val length = at - start
      WrittenRegion(
        segment,
        Place.InFile(file, start, length, head.bytes.length - head.before),
        java.util.Arrays.copyOfRange(head.bytes, head.before, head.bytes.length))
    }
  }

  private def headOf(
      blocks: RegionBlocks,
      segment: Segment,
      header: Option[Array[Byte]],
      chunks: Seq[(String, RegionChunk)],
      from: Long): End = {
    val sealedChunks = chunks.map { case (name, chunk) =>
      name -> blocks.seal(name, chunk.encode, compress)
    }
    val offsets = sealedChunks.scanLeft(from)(_ + _._2.length)
    val listed = sealedChunks.zip(offsets).map { case ((name, value), offset) =>
      DirectoryBlock(name, offset, value.length)
    }
    val tail = blocks.seal(
      RegionTail.Name,
      RegionTail.of(id, segment, header.fold(0)(_.length), listed).encode,
      compress)
    val directory = sealedChunks.map(_._2.length.toLong).sum
    val rest = header.fold(0L)(_.length.toLong) + tail.length + RegionBlocks.FooterBytes
    if (directory + rest > Int.MaxValue)
      throw new InternalException(
        s"write ${segment.ident} of $id into a file: its head is too large.")
    val bytes = ByteBuffer.allocate((directory + rest).toInt)
    sealedChunks.foreach { case (_, value) => bytes.put(value) }
    header.foreach(bytes.put)
    bytes.put(tail).putInt(tail.length).put(RegionBlocks.Magic)
    End(bytes.array, if (directory + rest <= RegionBlocks.HeadBytesMax) 0 else directory.toInt)
  }

  private def put(bytes: Array[Byte]): Unit = {
    sink.write(bytes)
    at += bytes.length
  }
}

private[core] object BlockFileWriter {

  /** Creates a file, and closes it after the work; abandons it if the work throws. */
  def written[A](store: FileStore, file: String, id: PartitionId, signer: Option[BlockSigner])(
      work: BlockFileWriter => A): A = {
    val sink = store.create(file)
    var isClosed = false
    try {
      val done = work(new BlockFileWriter(sink, id, file, signer))
      sink.close()
      isClosed = true
      done
    } finally if (!isClosed) sink.abandon()
  }

  /** @param before bytes of the directory that are not part of the head */
  private final case class End(bytes: Array[Byte], before: Int)

  /**
   * Returns the names of the fields that a segment can have, without the header, in the order of a
   * region.
   */
  def names(segment: Segment, header: Header): Iterator[String] = {
    val reader = new SegmentReader(segment)
    val buckets = (0 until segment.entry.buckets).iterator.flatMap(reader.partNames(header, _))
    buckets ++ header.ordered.sortBy(_._1).iterator.flatMap { case (family, keys) =>
      keys.indices.iterator.map(i => s"$family/$i")
    }
  }

  /** Directory of a region, built while blocks are added. */
  private final class Directory(filters: RegionFilters.Maker) {
    private val made = mutable.ArrayBuffer.empty[(String, RegionChunk)]
    private val lengths = mutable.ArrayBuffer.empty[Int]
    private val parts = mutable.LinkedHashMap.empty[Int, mutable.ArrayBuffer[Int]]
    private var name = ""
    private var offset = 0L
    private var last = FieldName(Int.MinValue, 0, 0)

    /** @param block without a signature */
    def add(field: String, at: Long, length: Int, block: Array[Byte]): Unit = {
      val named = FieldName.parse(field)
      if (!named.follows(last))
        throw new InternalException(s"write a region: field $field comes out of order.")
      last = named
      if (named.chunk != name) {
        end()
        name = named.chunk
        offset = at
      }
      if (named.part > 0)
        parts.getOrElseUpdate(named.number, mutable.ArrayBuffer.empty) += length
      else {
        while (lengths.size < named.number % RegionChunk.Size) lengths += 0
        lengths += length
      }
      if (named.isHashed) filters.add(field, named.number, block)
    }

    private def end(): Unit = {
      if (name.nonEmpty)
        made += name -> RegionChunk(
          offset,
          lengths.toSeq,
          parts.map { case (bucket, of) => bucket -> of.toSeq }.toMap,
          filters.end())
      lengths.clear()
      parts.clear()
    }

    def chunks: Seq[(String, RegionChunk)] = {
      end()
      name = ""
      made.toSeq
    }
  }
}

/**
 * A field of a segment by its name: part `part` of bucket `number`, or block `number` of an ordered
 * family.
 */
private[core] final case class FieldName(family: Int, number: Int, part: Int) {

  /** Returns whether this field comes after another one in a region. */
  def follows(other: FieldName): Boolean = {
    import scala.math.Ordering.Implicits._
    (other.family, other.number, other.part) < ((family, number, part))
  }

  /** True if the field is a part of a bucket. */
  def isHashed: Boolean = family < 0

  /** Name of the directory block of this field. */
  def chunk: String =
    if (isHashed) s"i${number / RegionChunk.Size}"
    else s"$family/i${number / RegionChunk.Size}"
}

private[core] object FieldName {
  private val OfHashed = -1

  /** @param name of a field that a header names, so that its numbers are right */
  def parse(name: String): FieldName = {
    val slash = name.indexOf('/')
    val dot = name.indexOf('.')
    if (slash >= 0) FieldName(name.take(slash).toInt, name.drop(slash + 1).toInt, 0)
    else if (dot >= 0) FieldName(OfHashed, name.take(dot).toInt, name.drop(dot + 1).toInt)
    else FieldName(OfHashed, name.toInt, 0)
  }
}
