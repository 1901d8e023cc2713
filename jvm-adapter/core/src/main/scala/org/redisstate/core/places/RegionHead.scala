package org.redisstate.core.places

import java.nio.charset.StandardCharsets.US_ASCII

import scala.collection.immutable.ArraySeq
import scala.collection.mutable

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.{
  Block,
  BlockSigner,
  HashFilter,
  MsgpackReader,
  MsgpackWriter,
  Segment
}
import org.redisstate.core.ids.{Keys, PartitionId}

/** A directory block, with its offset from the start of the region. */
private[core] final case class DirectoryBlock(name: String, offset: Long, length: Int)

/**
 * Tail of a region: its segment, and the places of its directory blocks.
 *
 * @param header length of the value of the field `h`; 0 without one
 */
private[core] final case class RegionTail(
    field: String,
    entry: String,
    gen: String,
    operator: Long,
    partition: Int,
    store: String,
    header: Int,
    directory: Seq[DirectoryBlock]) {
  import RegionTail._

  def encode: Array[Byte] = {
    val out = new MsgpackWriter(256)
    out.putMap(Members.size)
    out.putString("field")
    out.putString(field)
    out.putString("entry")
    out.putString(entry)
    out.putString("gen")
    out.putString(gen)
    out.putString("operator")
    out.putUlong(operator)
    out.putString("partition")
    out.putUint(partition)
    out.putString("store")
    out.putString(store)
    out.putString("h")
    out.putUint(header)
    out.putString("at")
    out.putArray(directory.size * DirectoryWords)
    directory.foreach { one =>
      out.putString(one.name)
      out.putUlong(one.offset)
      out.putUint(one.length)
    }
    out.toBytes
  }
}

private[core] object RegionTail {
  val Name = "t"
  private val Members = Seq("field", "entry", "gen", "operator", "partition", "store", "h", "at")
  private val DirectoryWords = 3

  def of(
      id: PartitionId,
      segment: Segment,
      header: Int,
      directory: Seq[DirectoryBlock]): RegionTail =
    RegionTail(
      segment.field,
      segment.entry.text,
      id.gen,
      id.operator,
      id.partition,
      id.storeName,
      header,
      directory)

  def decode(payload: Array[Byte]): RegionTail = {
    val in = new MsgpackReader(payload)
    if (in.mapSize() != Members.size) bad()
    def key(name: String): Unit = if (in.string() != name) bad()
    def text(name: String) = { key(name); in.string() }
    val field = text("field")
    val entry = text("entry")
    val gen = text("gen")
    key("operator")
    val operator = in.ulong()
    key("partition")
    val partition = in.uint()
    val store = text("store")
    key("h")
    val header = in.uint()
    key("at")
    val words = in.arraySize()
    if (words % DirectoryWords != 0) bad()
    val directory = mutable.ArrayBuffer.empty[DirectoryBlock]
    (0 until words / DirectoryWords).foreach { _ =>
      directory += DirectoryBlock(in.string(), in.ulong(), in.uint())
    }
    if (!in.atEnd) bad()
    RegionTail(field, entry, gen, operator, partition, store, header, directory.toSeq)
  }

  private def bad(): Nothing = throw new FormatException("the tail cannot be read")
}

/**
 * Lengths of up to 64 consecutive buckets, or of as many blocks of an ordered family.
 *
 * @param offset of the first block, from the start of the region
 * @param lengths 0 for an absent block; of part 0 for buckets
 * @param parts lengths of the further parts, by bucket
 * @param filter of the rows in 64 buckets
 */
private[core] final case class RegionChunk(
    offset: Long,
    lengths: Seq[Int],
    parts: Map[Int, Seq[Int]],
    filter: Option[HashFilter] = None) {
  import RegionChunk._

  def bytes: Long =
    lengths.iterator.map(_.toLong).sum + parts.valuesIterator.flatten.map(_.toLong).sum
  def blocks: Long = lengths.count(_ > 0).toLong + parts.valuesIterator.map(_.size.toLong).sum

  def encode: Array[Byte] = {
    val out = new MsgpackWriter(Size * 3)
    out.putMap(2 + (if (parts.isEmpty) 0 else 1) + filter.size)
    out.putString("o")
    out.putUlong(offset)
    out.putString("l")
    val packed = leb128(lengths.reverse.dropWhile(_ == 0).reverse)
    out.putBin(packed, 0, packed.length)
    if (parts.nonEmpty) {
      out.putString("p")
      out.putArray(2 * parts.size)
      parts.toSeq.sortBy(_._1).foreach { case (bucket, of) =>
        out.putUint(bucket)
        out.putArray(of.size)
        of.foreach(out.putUint)
      }
    }
    filter.map(_.toBytes).foreach { bytes =>
      out.putString("b")
      out.putBin(bytes, 0, bytes.length)
    }
    out.toBytes
  }
}

private[core] object RegionChunk {

  /** Buckets, or blocks of an ordered family, of one directory block. */
  val Size = 64

  def decode(payload: Array[Byte]): RegionChunk = {
    val in = new MsgpackReader(payload)
    val keys = in.mapSize()
    if (keys < 2 || in.string() != "o") bad()
    val offset = in.ulong()
    if (in.string() != "l") bad()
    val lengths = unpacked(in.bin())
    var left = keys - 2
    def next(): String = if (left > 0) { left -= 1; in.string() }
    else ""
    var name = next()
    val parts =
      if (name != "p") Map.empty[Int, Seq[Int]]
      else {
        val found = partsOf(in)
        name = next()
        found
      }
    val filter = Option.when(name == "b")(HashFilter.read(in.bin()))
    if (filter.isEmpty && name.nonEmpty || left > 0 || !in.atEnd) bad()
    RegionChunk(offset, lengths, parts, filter)
  }

  private def partsOf(in: MsgpackReader): Map[Int, Seq[Int]] = {
    val parts = mutable.LinkedHashMap.empty[Int, Seq[Int]]
    val words = in.arraySize()
    if (words == 0 || words % 2 != 0) bad()
    (0 until words / 2).foreach { _ =>
      val bucket = in.uint()
      if (parts.lastOption.exists(_._1 >= bucket)) bad()
      val count = in.arraySize()
      if (count == 0) bad()
      parts(bucket) = Seq.fill(count)(in.uint())
      if (parts(bucket).exists(_ == 0)) bad()
    }
    parts.toMap
  }

  private def leb128(numbers: Seq[Int]): Array[Byte] = {
    val out = mutable.ArrayBuilder.make[Byte]
    numbers.foreach { number =>
      var left = number
      while (left >= 0x80) {
        out += (left & 0x7f | 0x80).toByte
        left >>>= 7
      }
      out += left.toByte
    }
    out.result()
  }

  private def unpacked(bytes: Array[Byte]): Seq[Int] = {
    val numbers = mutable.ArrayBuffer.empty[Int]
    var value = 0L
    var shift = 0
    bytes.foreach { byte =>
      if (shift > MaxShift) bad()
      value |= (byte & 0x7fL) << shift
      shift += 7
      if (byte >= 0) {
        // Only the shortest form, so that a chunk has one encoding.
        if (value > Int.MaxValue || (byte == 0 && shift > 7) || numbers.size == Size) bad()
        numbers += value.toInt
        value = 0
        shift = 0
      }
    }
    if (shift != 0 || numbers.lastOption.contains(0)) bad()
    // A list would take ten times as much: readers hold many of them.
    numbers.to(ArraySeq)
  }

  private val MaxShift = 28

  private def bad(): Nothing = throw new FormatException("the directory cannot be read")
}

/**
 * Checks and signatures of the blocks that a region adds to those of its segment.
 *
 * @param id the partition that the segment belongs to
 */
private[core] final class RegionBlocks(
    id: PartitionId,
    segment: Segment,
    signer: Option[BlockSigner]) {
  private val key = Keys.segment(id, segment.ident).getBytes(US_ASCII)

  def seal(name: String, payload: Array[Byte], compress: Boolean): Array[Byte] =
    signed(name, Block.encode(segment.ident, name, payload, payload.length, compress))

  /** Returns a block with its signature, if the checkpoint is signed. */
  def signed(name: String, block: Array[Byte]): Array[Byte] =
    signer.fold(block)(_.signed(key, name, block))

  def open(name: String, value: Array[Byte]): Array[Byte] =
    Block.decode(segment.ident, name, plain(name, value))

  /** Returns whether signature and check of a value are valid, without reading the payload. */
  def isIntact(name: String, value: Array[Byte]): Boolean =
    try Block.isIntact(segment.ident, name, plain(name, value))
    catch { case _: FormatException => false }

  /** Checks the signature of a value, and removes it. */
  def plain(name: String, value: Array[Byte]): Array[Byte] =
    signer.fold(value)(_.opened(key, name, value))
}

private[core] object RegionBlocks {
  val Magic: Array[Byte] = "rs-seg01".getBytes(US_ASCII)

  /** Bytes behind the tail: its length, and the magic. */
  val FooterBytes: Int = 4 + Magic.length

  /** Most bytes of a head that includes the directory. */
  val HeadBytesMax: Int = 1 << 20
}
