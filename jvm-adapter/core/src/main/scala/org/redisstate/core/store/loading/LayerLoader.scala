package org.redisstate.core.store.loading

import org.redisstate.core.local.{Layer, LayerSizes}

/** Builds layers of segments. */
private[store] final class LayerLoader(reader: WholeReader, sizes: LayerSizes) {
  import LayerLoader._

  /**
   * Layers of the rows of all these, newest first.
   *
   * @param segments oldest first
   * @throws org.redisstate.core.protocol.SegmentGone see `WholeReader.read`
   */
  def layers(segments: Seq[WholeSegment]): List[Layer] = {
    val build = new Build(segments.map(_.head.segment.entry.rows).sum)
    reader.read(segments).foreach { case (head, blocks) => build.add(head, blocks) }
    build.result
  }

  private final class Build(rows: Long) {
    private var layers: List[Layer] = Nil

    /** Elements to append need to know what is below their segment, so they begin a layer. */
    def add(head: SegmentHead, blocks: Seq[WholeBlock]): Unit = {
      val appends = blocks.exists(b => (0 until b.rows.count).exists(b.rows.isAppended))
      val bytes = blocks.iterator.map(WholeReader.bytesOf(_)).sum
      val isFull = layers.headOption.exists(_.usedBytes + bytes > sizes.mergedMax)
      if (layers.isEmpty || isFull || (appends && !layers.head.isEmpty))
        layers ::= new Layer(math.min(rows, RoomRowsMax).toInt)
      head.header.tombstones.foreach(layers.head.clear)
      blocks.foreach(block => addAll(layers.head, block))
    }

    def result: List[Layer] = layers.filterNot(_.isEmpty).map(_.trimmed)
  }

  private def addAll(layer: Layer, block: WholeBlock): Unit = {
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

private object LayerLoader {
  private val RoomRowsMax = 1L << 20
}
