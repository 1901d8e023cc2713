package org.redisstate.core.store.loading

import scala.collection.mutable

import org.redisstate.core.format._
import org.redisstate.core.local._
import org.redisstate.core.protocol.{Piece, SegmentIo}
import org.redisstate.core.store.resources.{Background, StoreCounters}

/**
 * Reads segments as a whole. What fits into one reply is read in one round trip, and helpers read
 * and decode the next ones while the task builds the layer of those that came.
 */
private[store] final class LayerLoader(
    io: SegmentIo,
    decoder: SegmentDecoder,
    counters: StoreCounters,
    sizes: LayerSizes) {
  import LayerLoader._

  /**
   * Layers of the rows of all these, newest first; counts and checksums are compared with the
   * entries.
   *
   * @param segments oldest first
   */
  def layers(segments: Seq[WholeSegment]): List[Layer] = {
    val filled = segments.filter(_.head.segment.entry.blocks > 0)
    val pieces = filled.flatMap(whole => piecesOf(whole.head))
    val groups = Piece.grouped(pieces)
    val families = filled.map(whole => whole.head.segment -> whole.families).toMap
    val build = new Build(filled.map(_.head.segment.entry.rows).sum)
    val rest = Background
      .sharing(s"loading ${io.id}", groups.length)(i => read(groups(i), families))
      .flatten
    filled.foreach { whole =>
      val parts = mutable.ArrayBuffer(rest.next())
      while (!parts.last.last) parts += rest.next()
      build.add(whole.head, parts.toSeq)
    }
    build.result
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
        Decoded(EncodedField(name, head), block.length.toLong, rows, hashes)
    }
    counters.bucketsLoaded.addAndGet(found.size.toLong)
    DecodedPiece(found, piece.last)
  }

  private final class Build(rows: Long) {
    private var layers: List[Layer] = Nil

    /** Elements to append need to know what is below their segment, so they begin a layer. */
    def add(head: SegmentHead, parts: Seq[DecodedPiece]): Unit = {
      val blocks = parts.flatMap(_.blocks)
      check(head, blocks)
      val appends = blocks.exists(b => (0 until b.rows.count).exists(b.rows.isAppended))
      val bytes = blocks.iterator.map(b => b.rows.bytes.length + RowBytes * b.rows.count).sum
      val isFull = layers.headOption.exists(_.usedBytes + bytes > sizes.mergedMax)
      if (layers.isEmpty || isFull || (appends && !layers.head.isEmpty))
        layers ::= new Layer(math.min(rows, RoomRowsMax).toInt)
      head.header.tombstones.foreach(layers.head.clear)
      blocks.foreach(block => addAll(layers.head, block))
    }

    def result: List[Layer] = layers.filterNot(_.isEmpty).map(_.trimmed)
  }

  private def check(head: SegmentHead, blocks: Seq[Decoded]): Unit =
    decoder.named(head.segment) {
      val reader = new SegmentReader(head.segment)
      val all = blocks.map(_.field) ++ head.field
      val bytes = blocks.iterator.map(_.bytes).sum + head.field.fold(0L)(_.block.length.toLong)
      reader.checkBlocks(all, bytes)
      reader.checkRows(blocks.iterator.map(_.rows.count.toLong).sum)
    }

  private def addAll(layer: Layer, block: Decoded): Unit = {
    val rows = block.rows
    var i = 0
    while (i < rows.count) {
      val key = rows.keyOffset(i)
      val length = rows.keyLength(i)
      val hash = block.hashes(i)
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
}

private[store] object LayerLoader {

  /** A decoded row of a delta stands in a layer with so many bytes around it. */
  private val RowBytes = 40L

  /** Blocks of changes are a fourth of their rows, or more. */
  private val Ratio = 4L

  /** Approximate bytes of a delta while it becomes a layer. */
  def bytesOf(delta: Entry): Long = Ratio * delta.bytes + RowBytes * delta.rows
  private val RoomRowsMax = 1L << 20

  /**
   * A block after decoding.
   *
   * @param field its name and its first bytes
   * @param bytes of the whole block
   * @param hashes of its rows
   */
  private final case class Decoded(
      field: EncodedField,
      bytes: Long,
      rows: RowBlock,
      hashes: Array[Int])

  /** @param last whether these are the last blocks of their segment */
  private final case class DecodedPiece(blocks: Seq[Decoded], last: Boolean)
}
