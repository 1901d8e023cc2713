package org.redisstate.core.store.loading

import org.redisstate.core.format.Entry
import org.redisstate.core.local.{Content, LayerSizes, Room}
import org.redisstate.core.protocol.SegmentIo
import org.redisstate.core.store.resources.StoreCounters

/** Builds the content of a version from its segments. */
private[store] final class ContentLoader(
    io: SegmentIo,
    loader: SegmentLoader,
    counters: StoreCounters,
    room: Room,
    sizes: LayerSizes) {

  /**
   * Deltas over what is below them. Those that memory has room for become layers, as long as these
   * can become one; older ones are read bucket by bucket, together with the snapshot.
   *
   * @param below a content that is here, if they stand on one
   * @param bottom a snapshot, if they stand on one
   * @param deltas oldest first
   * @param layered whether any of them become layers
   * @param once for one pass over the rows: the delta that they begin with is not brought into memory
   * @return None when they do not fit over what is here
   */
  def over(
      below: Option[Content],
      bottom: Option[WholeSegment],
      deltas: Seq[WholeSegment],
      layered: Boolean,
      once: Boolean): Option[Content] = {
    val isBottom = below.isEmpty && bottom.isEmpty
    val alone =
      deltas.headOption.count(d => isBottom && (once || ContentLoader.isBase(d.head.segment.entry)))
    val above = if (layered) deltas.drop(alone) else Nil
    var together = 0L
    val newest =
      above.reverseIterator.map(d => LayerLoader.bytesOf(d.head.segment.entry)).takeWhile { bytes =>
        together += bytes
        together <= sizes.mergedMax && room.offer(bytes)
      }.toSeq
    try {
      val (large, small) = deltas.splitAt(deltas.length - newest.length)
      val base =
        if (large.isEmpty) below.orElse(bottom.map(b => new Content(loader.base(b.head), Nil)))
          .orElse(Some(Content.empty()))
        else if (below.isEmpty) Some(new Content(loader.together(bottom.toSeq ++ large, once), Nil))
        else None
      base.map { content =>
        val layers = new LayerLoader(io, loader.decoder, counters, sizes).layers(small)
        val loaded = content.over(layers)
        if (loaded.layers.length > ContentLoader.LayersMax) loaded.merged(sizes.mergedMax)
        else loaded
      }
    } finally room.give(newest.sum)
  }
}

private[store] object ContentLoader {

  /**
   * Returns whether a delta has all rows of its version, in buckets small enough to be read one by
   * one.
   */
  private def isBase(delta: Entry): Boolean =
    delta.complete && MergedSource.bucketsFor(Seq(delta)) <= 2 * delta.buckets

  /** Layers above this number become one. */
  val LayersMax = 8
}
