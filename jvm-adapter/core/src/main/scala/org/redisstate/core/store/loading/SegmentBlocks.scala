package org.redisstate.core.store.loading

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.{Family, HashFilter, RowBlock, RowFilter, RowMerge, SegmentReader}
import org.redisstate.core.local.{BucketSource, KeyHash}
import org.redisstate.core.local.blocks.{OrderedRows, Room}
import org.redisstate.core.places.FileMissing
import org.redisstate.core.protocol.{SegmentGone, SegmentIo}
import org.redisstate.core.store.resources.StoreCounters

/**
 * The blocks of a segment, some at a time and each checked; when the last one came, all of it is
 * compared with the entry.
 *
 * @param families as they are from this segment on
 */
private[store] final class SegmentBlocks(
    io: SegmentIo,
    decoder: SegmentDecoder,
    counters: StoreCounters,
    val head: SegmentHead,
    families: Seq[Family]) {
  import SegmentBlocks._

  private val segment = head.segment
  private val header = head.header
  private val reader = new SegmentReader(segment)
  private val checks = new SegmentChecks(head)

  def buckets: Int = segment.entry.buckets

  /** True if the blocks are in a file. */
  def isInFile: Boolean = io.isInFile(segment)

  /** Filters of the rows in buckets, where a file has them. */
  def filter(): RowFilter = io.filter(segment)

  /** Most bytes of `filterOfRows`. */
  def filterBytes: Long = HashFilter.bytesOf(segment.entry.rows)

  /** Filter of the rows in buckets, made of the rows themselves. */
  def filterOfRows(): RowFilter =
    if (segment.entry.rows == 0) RowFilter.Nothing
    else
      try hashesOfRows().fold(RowFilter.Unknown)(hashes =>
          HashFilter.of(hashes, hashes.length).getOrElse(RowFilter.Unknown))
      catch { case _: SegmentGone | _: FileMissing | _: RedisStateException => RowFilter.Unread }

  /** Hashes of all rows in buckets; None if there are too many for a filter. */
  private def hashesOfRows(): Option[Array[Int]] = {
    val hashOf = KeyHash.of(families)
    val hashes = Array.newBuilder[Int]
    val perRead = math.max(1L, ReadBytes / math.max(1L, blockBytes)).toInt
    Option.when(segment.entry.rows <= HashFilter.HashesMax) {
      (0 until buckets).grouped(perRead).foreach(read(_).foreach { rows =>
        var i = 0
        while (i < rows.count) {
          hashes += hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
          i += 1
        }
      })
      hashes.result()
    }
  }

  /** Bytes of a block as it arrives. */
  val blockBytes: Long = segment.entry.bytes / math.max(1, segment.entry.blocks)

  /** The rows of some buckets, their parts together. */
  def read(wanted: Seq[Int]): Seq[RowBlock] = {
    counters.bucketsLoaded.addAndGet(wanted.size.toLong)
    val names = wanted.map(reader.partNames(header, _))
    val blocks = io.fetch(segment, names.flatten).iterator
    names.map(parts => together(parts.map(name => part(name, blocks.next()))))
  }

  /** Neighbours first, so that a row is copied as often as the number of parts can be halved. */
  private def together(parts: Seq[RowBlock]): RowBlock =
    if (parts.length == 1) parts.head
    else {
      val (older, newer) = parts.splitAt(parts.length / 2)
      RowMerge.merge(together(older), together(newer), resolve = false)
    }

  def firstKeys(family: Int): Seq[Array[Byte]] =
    header.ordered.collectFirst { case (`family`, keys) => keys }.getOrElse(Nil)

  def orderedFamilies: Seq[Int] = header.ordered.map(_._1)

  /** The blocks [from, until) of an ordered family. */
  def readOrdered(family: Int, from: Int, until: Int): Array[RowBlock] = {
    val keys = firstKeys(family)
    counters.bucketsLoaded.addAndGet((until - from).toLong)
    val names = (from until until).map(i => s"$family/$i")
    val rows = names.zip(io.fetch(segment, names)).map { case (name, block) =>
      part(name, block)
    }.toArray
    rows.indices.foreach { i =>
      if (!OrderedRows.fits(rows(i), keys(from + i), keys.lift(from + i + 1)))
        decoder.damaged(segment, s"the blocks of family $family are not in key order")
    }
    rows
  }

  private def part(name: String, block: Array[Byte]): RowBlock = {
    val rows =
      if (block == null) RowBlock.Empty else decoder.decode(segment, name, block, families)
    checks.came(name, block).foreach(decoder.damaged(segment, _))
    rows
  }
}

private object SegmentBlocks {

  /** Bytes of blocks that are read at once for a filter. */
  private val ReadBytes = 256L << 10
}

/** The buckets of a snapshot, as they are there. */
private[store] final class SnapshotSource(blocks: SegmentBlocks) extends BucketSource {

  /** Bytes of a bucket as it arrives and after decoding. */
  override val bucketBytes: Long = BucketSource.BytesMax + blocks.blockBytes

  override def read(from: Int, until: Int): Array[RowBlock] = read(from until until)
  override def read(wanted: IndexedSeq[Int]): Array[RowBlock] = blocks.read(wanted).toArray
  override def isInFiles: Boolean = blocks.isInFile
  override def filter(): RowFilter = blocks.filter()
  override def blockBytes: Long = blocks.blockBytes

  def ordered(room: Room): Map[Int, OrderedRows] = blocks.orderedFamilies.map { family =>
    family -> OrderedRows.remote(
      blocks.firstKeys(family),
      (from, until) => blocks.readOrdered(family, from, until),
      room)
  }.toMap
}
