package org.redisstate.core.store.loading

import scala.collection.mutable

import org.redisstate.core.format._
import org.redisstate.core.local.KeyHash
import org.redisstate.core.protocol.{Piece, SegmentIo}
import org.redisstate.core.store.resources.{Background, StoreCounters}

/**
 * A block after decoding.
 *
 * @param field its name and its first bytes
 * @param bytes of the whole block
 * @param hashes of its rows
 */
private[store] final case class WholeBlock(
    field: EncodedField,
    bytes: Long,
    rows: RowBlock,
    hashes: Array[Int])

/**
 * Reads segments as a whole. What fits into one reply is read in one round trip, and helpers read
 * and decode the next blocks while the caller uses those that came.
 */
private[store] final class WholeReader(
    io: SegmentIo,
    decoder: SegmentDecoder,
    counters: StoreCounters) {
  import WholeReader._

  /**
   * All blocks of these segments, in the order of the segments; counts and checksums are compared
   * with the entries. Segments without blocks are left out.
   *
   * @throws org.redisstate.core.protocol.SegmentGone when one is not whole any more: open again
   * @throws org.redisstate.core.errors.FormatException when one is damaged
   */
  def read(segments: Seq[WholeSegment]): Iterator[(SegmentHead, Seq[WholeBlock])] = {
    val filled = segments.filter(_.head.segment.entry.blocks > 0)
    val groups = Piece.grouped(filled.flatMap(whole => piecesOf(whole.head)))
    val families = filled.map(whole => whole.head.segment -> whole.families).toMap
    val inFiles = filled.exists(whole => io.isInFile(whole.head.segment))
    val rest = Background
      .sharing(s"loading ${io.id}", groups.length, inFiles)(i => read(groups(i), families))
      .flatten
    filled.iterator.map { whole =>
      val parts = mutable.ArrayBuffer(rest.next())
      while (!parts.last.last) parts += rest.next()
      val blocks = parts.toSeq.flatMap(_.blocks)
      check(whole.head, blocks)
      whole.head -> blocks
    }
  }

  private def piecesOf(head: SegmentHead): Seq[Piece] = {
    val reader = new SegmentReader(head.segment)
    val buckets = 0 until head.segment.entry.buckets
    val names =
      buckets.flatMap(reader.partNames(head.header, _)) ++ reader.orderedNames(head.header)
    val all = io.pieces(head.segment, names)
    all.init :+ all.last.copy(last = true)
  }

  private def read(group: Seq[Piece], families: Segment => Seq[Family]): Seq[DecodedPiece] =
    group.zip(io.fetch(group)).map { case (piece, blocks) =>
      decode(piece, blocks, families(piece.segment))
    }

  private def decode(
      piece: Piece,
      blocks: Seq[Array[Byte]],
      families: Seq[Family]): DecodedPiece = {
    val hashOf = KeyHash.of(families)
    val found = piece.fields.zip(blocks).collect {
      case (name, block) if block != null =>
        val rows = decoder.decode(piece.segment, name, block, families)
        val hashes = Array.tabulate(rows.count) { i =>
          hashOf(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        }
        val head = java.util.Arrays.copyOf(block, Block.HeaderBytes)
        WholeBlock(EncodedField(name, head), block.length.toLong, rows, hashes)
    }
    counters.bucketsLoaded.addAndGet(found.size.toLong)
    DecodedPiece(found, piece.last)
  }

  private def check(head: SegmentHead, blocks: Seq[WholeBlock]): Unit =
    decoder.named(head.segment) {
      val reader = new SegmentReader(head.segment)
      val all = blocks.map(_.field) ++ head.field
      val bytes = blocks.iterator.map(_.bytes).sum + head.field.fold(0L)(_.block.length.toLong)
      reader.checkBlocks(all, bytes)
      reader.checkRows(blocks.iterator.map(_.rows.count.toLong).sum)
    }
}

private[store] object WholeReader {

  /** A decoded row of a delta has so many bytes around it. */
  private val RowBytes = 40L

  /** Blocks of changes are a fourth of their rows, or more. */
  private val Ratio = 4L

  /** Approximate bytes of a delta while all of it is in memory. */
  def bytesOf(delta: Entry): Long = Ratio * delta.bytes + RowBytes * delta.rows

  /** Bytes of a block's rows in a layer. */
  def bytesOf(block: WholeBlock): Long = block.rows.bytes.length + RowBytes * block.rows.count

  /** @param last whether these are the last blocks of their segment */
  private final case class DecodedPiece(blocks: Seq[WholeBlock], last: Boolean)
}
