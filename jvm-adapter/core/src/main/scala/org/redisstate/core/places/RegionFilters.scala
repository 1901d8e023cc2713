package org.redisstate.core.places

import java.util.zip.CRC32

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.{
  Block,
  Bucketing,
  Family,
  FamilyKind,
  HashFilter,
  RowBlock,
  RowFilter
}

/**
 * Filters of a region (docs/format.md, section 17).
 *
 * @param buckets of the segment
 * @param chunks by number of the directory block; null where there is none
 */
private[core] final class RegionFilters private (buckets: Int, chunks: Array[HashFilter])
    extends RowFilter {
  override val bytes: Long =
    8L * chunks.length + chunks.iterator.filter(_ != null).map(_.bytes).sum

  override def denies(hash: Int): Boolean = {
    val filter = chunks(Bucketing.bucket(hash, buckets) / RegionChunk.Size)
    filter != null && filter.denies(hash)
  }
}

private[core] object RegionFilters {

  /** Most bytes of all filters of a region. */
  val BytesMax: Long = 32L << 20

  /** @param chunks filters with the numbers of their directory blocks */
  def of(buckets: Int, chunks: Iterable[(Int, HashFilter)]): RowFilter =
    if (chunks.isEmpty) RowFilter.Unknown
    else {
      val all = new Array[HashFilter]((buckets + RegionChunk.Size - 1) / RegionChunk.Size)
      chunks.foreach { case (number, filter) => all(number) = filter }
      new RegionFilters(buckets, all)
    }

  /** Source of the hashes of rows that are written. */
  sealed trait Hashing

  /** The families of the segment are known. */
  final case class ByFamily(kinds: Map[Int, FamilyKind]) extends Hashing

  object ByFamily {
    def of(families: Seq[Family]): ByFamily = ByFamily(families.map(f => f.id -> f.kind).toMap)
  }

  /** The number of buckets is known, but not the families. */
  final case class ByBucket(buckets: Int) extends Hashing

  /** Makes filters of the blocks that are written. For one thread. */
  final class Maker(ident: String, hashing: Hashing) {
    private val crc = new CRC32
    private var hashes = new Array[Int](1024)
    private var count = 0
    private var isWhole = true
    private var left = BytesMax

    /**
     * Adds the rows of a block. A block that cannot be read ends the filter, without an error: that
     * is left to the reader of its rows.
     */
    def add(field: String, bucket: Int, block: Array[Byte]): Unit = if (isWhole && left > 0) {
      try {
        val rows = RowBlock.parse(Block.decode(ident, field, block))
        var i = 0
        while (i < rows.count) {
          add(bucket, rows.bytes, rows.keyOffset(i), rows.keyLength(i))
          i += 1
        }
      } catch { case _: FormatException => isWhole = false }
    }

    private def add(bucket: Int, bytes: Array[Byte], offset: Int, length: Int): Unit =
      if (length < Bucketing.FamilyBytes) isWhole = false
      else
        hashing match {
          case ByBucket(buckets) =>
            Bucketing.hashesIn(bucket, buckets, crc, bytes, offset, length)(note)
          case ByFamily(kinds) =>
            val family = ((bytes(offset) & 0xff) << 8) | (bytes(offset + 1) & 0xff)
            kinds.get(family) match {
              case Some(kind) => note(Bucketing.hash(crc, kind, bytes, offset, length))
              case None => isWhole = false
            }
        }

    private def note(hash: Int): Unit = {
      if (count == hashes.length) hashes = java.util.Arrays.copyOf(hashes, 2 * count)
      hashes(count) = hash
      count += 1
    }

    /** Returns the filter of the rows added since the last call; None if it would lack rows. */
    def end(): Option[HashFilter] = {
      val made = if (isWhole && left > 0 && count > 0) HashFilter.of(hashes, count) else None
      count = 0
      isWhole = true
      made.filter { filter =>
        left -= filter.toBytes.length
        left >= 0
      }
    }
  }
}
