package org.redisstate.core.format

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.zip.CRC32

import scala.collection.mutable

import org.redisstate.core.errors.{InternalException, LimitException}

/** A field of a segment's hash and its block. */
final case class EncodedField(name: String, block: Array[Byte])

/**
 * Turns rows into the fields of a segment. Buckets are added in any order, the rows of a bucket in
 * key order; a bucket that comes again gets a further part, which overrides the earlier ones. An
 * ordered family comes once, all its rows in key order.
 *
 * @param ident of the segment, part of every block's check
 * @param headerBytesMax so many bytes of first keys at most has the index of its ordered families
 */
final class SegmentWriter(
    ident: String,
    val buckets: Int,
    compress: Boolean = true,
    headerBytesMax: Long = SegmentWriter.FirstKeyBytesMax) {
  import SegmentWriter._

  private val fields = mutable.ArrayBuffer.empty[EncodedField]
  private val parts = mutable.HashMap.empty[Int, Int]
  private val ordered = mutable.ArrayBuffer.empty[(Int, Seq[Array[Byte]])]
  private val part = new RowBlock.Builder(PartBytesMax)
  private var taken = 0
  private var firstKeyBytes = 0L
  private var rowCount = 0L
  @volatile private var byteCount = 0L
  private var takenBytes = 0L

  def rows: Long = rowCount

  /** Adds rows of a bucket, in parts where they are many. */
  def add(bucket: Int, block: RowBlock): Unit =
    if (block.count > 0) {
      if (block.bytes.length <= PartBytesMax) emitPart(bucket, block)
      else cut(Iterator.single(block), PartBytesMax, Int.MaxValue)(emitPart(bucket, _))
    }

  /** Adds all rows of an ordered family. */
  def addOrdered(family: Int, block: RowBlock): Unit =
    addOrdered(family, Iterator.single(block))(_ => ())

  /**
   * Adds an ordered family whose rows come in several blocks.
   *
   * @param use told of each block that is made of them
   */
  def addOrdered(family: Int, blocks: Iterator[RowBlock])(use: RowBlock => Unit): Unit = {
    val firstKeys = mutable.ArrayBuffer.empty[Array[Byte]]
    cut(blocks, OrderedBytesMax, OrderedRowsMax, OrderedKeysMin) { rows =>
      emit(s"$family/${firstKeys.length}", rows)
      val from = rows.keyOffset(0)
      firstKeys += java.util.Arrays.copyOfRange(rows.bytes, from, from + rows.keyLength(0))
      firstKeyBytes += rows.keyLength(0) + 5
      if (firstKeyBytes > headerBytesMax) {
        throw new LimitException(
          s"write $ident: the first keys of the blocks of ordered families take $firstKeyBytes " +
            s"bytes, above the limit of $headerBytesMax. Nothing was committed. Shorten the " +
            "columns that order the rows, or use more shuffle partitions.")
      }
      use(rows)
    }
    if (firstKeys.nonEmpty) ordered += family -> firstKeys.toSeq
  }

  /**
   * Pieces of rows within both limits; a row larger than the limit is a piece of its own.
   *
   * @param keysMin so many times the length of its first key may a piece have in any case
   */
  private def cut(blocks: Iterator[RowBlock], bytesMax: Int, rowsMax: Int, keysMin: Int = 0)(
      use: RowBlock => Unit): Unit = {
    var most = bytesMax
    def flush(): Unit = {
      use(part.result())
      part.reset()
    }
    blocks.foreach { block =>
      var i = 0
      while (i < block.count) {
        val size = block.keyLength(i) + (if (block.isRemoved(i)) 1 else block.valueLength(i)) + 10
        if (part.count > 0 && (part.rawBytes + size > most || part.count >= rowsMax)) flush()
        if (part.count == 0) most = math.max(bytesMax, keysMin * block.keyLength(i))
        part.addFrom(block, i)
        i += 1
      }
    }
    if (part.count > 0) flush()
  }

  private def emitPart(bucket: Int, rows: RowBlock): Unit = {
    val index = parts.getOrElse(bucket, 0)
    parts(bucket) = index + 1
    emit(if (index == 0) bucket.toString else s"$bucket.$index", rows)
  }

  private def emit(name: String, rows: RowBlock): Unit = {
    rowCount += rows.count
    add(name, rows.bytes)
  }

  private def add(name: String, payload: Array[Byte]): Unit = {
    val block = Block.encode(ident, name, payload, payload.length, compress)
    fields += EncodedField(name, block)
    byteCount += block.length
  }

  /** Bytes of all fields so far; a guess for another thread than the one that adds them. */
  def bytes: Long = byteCount

  /** Bytes of the fields that the next `takeFresh` gives. */
  def freshBytes: Long = byteCount - takenBytes

  /** Fields that were added since the last call: they can be staged, and will not change. */
  def takeFresh(): Seq[EncodedField] = {
    val fresh = fields.slice(taken, fields.length).toSeq
    taken = fields.length
    takenBytes = byteCount
    fresh
  }

  /**
   * Returns the fresh fields like `takeFresh`, and keeps only their checks: for a segment too large
   * for memory.
   */
  def handOver(): Seq[EncodedField] = {
    val from = taken
    val fresh = takeFresh()
    fresh.iterator.zipWithIndex.foreach { case (field, i) =>
      fields(from + i) = field.copy(block = java.util.Arrays.copyOf(field.block, Block.HeaderBytes))
    }
    fresh
  }

  def allFields: Seq[EncodedField] = fields.toSeq

  /**
   * Ends the segment and gives its entry; the header, where one is needed, is a further fresh
   * field.
   *
   * @param internal rows of the version in internal families, of `live`
   * @param highestId of all families that the lineage ever had
   * @param time of the version, 0 where no family has a time to live
   */
  def finish(
      ref: String,
      live: Long,
      families: Option[Seq[Family]],
      tombstones: Seq[Tombstone],
      complete: Boolean = false,
      internal: Long = 0,
      highestId: Int = 0,
      time: Long = 0): Entry = {
    if (live < 0) throw new InternalException(s"write $ident: it would have $live rows.")
    val gone = families.filter(_.forall(_.id < highestId)).map(_ => highestId)
    val header =
      Header(families, ordered.toSeq, parts.filter(_._2 > 1).toMap, tombstones, gone)
    if (!header.isEmpty) {
      add(Header.Field, header.encode)
    }
    Entry(
      ref,
      rowCount,
      live,
      fields.length,
      byteCount,
      buckets,
      SegmentWriter.checksum(fields),
      complete,
      header = !header.isEmpty,
      internal,
      time
    )
  }
}

object SegmentWriter {
  val KeyBytesMax: Int = 1 << 20
  val ValueBytesMax: Int = 64 << 20
  private[core] val PartBytesMax = 64 << 10
  private val OrderedBytesMax = 16 << 10
  private val OrderedRowsMax = 128

  /** The header lists the first key of each block: where keys are long, blocks are too. */
  private val OrderedKeysMin = 16

  /** Most bytes of a header's first keys: a block minus the rest of the header. */
  private[core] val FirstKeyBytesMax: Long = Block.RawLengthMax - (8L << 20)

  private val ByName: java.util.Comparator[EncodedField] = (a, b) => a.name.compareTo(b.name)

  /**
   * CRC-32 over field names and block checks in order of the names (docs/format.md, section 4.6).
   */
  def checksum(fields: Iterable[EncodedField]): Long = {
    val crc = new CRC32
    if (fields.isEmpty) 0L
    else {
      val byName = fields.toArray
      java.util.Arrays.sort(byName, ByName)
      byName.foreach { field =>
        crc.update(field.name.getBytes(US_ASCII))
        crc.update(0)
        crc.update(field.block, 6, 4)
      }
      crc.getValue
    }
  }

  /** @throws LimitException before anything is sent */
  def checkLimits(storedKeyBytes: Int, valueBytes: Long, where: => String): Unit = {
    if (storedKeyBytes - 2 > KeyBytesMax) {
      throw new LimitException(
        s"$where: a key of ${storedKeyBytes - 2} bytes is above the limit of " +
          s"$KeyBytesMax bytes. Nothing was written. Shorten the grouping key.")
    }
    if (valueBytes > ValueBytesMax) {
      throw new LimitException(s"$where: a value of $valueBytes bytes is above the limit of " +
        s"$ValueBytesMax bytes. Nothing was written. Split the state of this key.")
    }
  }
}
