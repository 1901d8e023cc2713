package org.redisstate.core.store

import org.redisstate.core.local.{Content, Room}
import org.redisstate.core.protocol.PartitionClient

/** Builds the content of a version from its segments. */
private[store] final class ContentLoader(
    client: PartitionClient,
    loader: SegmentLoader,
    counters: StoreCounters,
    room: Room) {

  /**
   * Deltas over what is below them. Those that memory has room for become layers; older ones are
   * read bucket by bucket, together with the snapshot.
   *
   * @param below a content that is here, if they stand on one
   * @param bottom a snapshot, if they stand on one
   * @param deltas oldest first
   * @param once for one pass over the rows: a delta that stands alone is not brought into memory
   * @return None when they do not fit over what is here
   */
  def over(
      below: Option[Content],
      bottom: Option[WholeSegment],
      deltas: Seq[WholeSegment],
      once: Boolean): Option[Content] = {
    val alone = if (once && below.isEmpty && bottom.isEmpty) 1 else 0
    val newest =
      deltas.drop(alone).reverseIterator.map(d => LayerLoader.bytesOf(d.head.segment.entry))
        .takeWhile(room.offer).toSeq
    try {
      val (large, small) = deltas.splitAt(deltas.length - newest.length)
      val base =
        if (large.isEmpty) below.orElse(bottom.map(b => new Content(loader.base(b.head), Nil)))
          .orElse(Some(Content.empty()))
        else if (below.isEmpty) Some(new Content(loader.together(bottom.toSeq ++ large, once), Nil))
        else None
      base.map { content =>
        val loaded = content.over(new LayerLoader(client, loader.decoder, counters).layers(small))
        if (loaded.layers.length > ContentLoader.LayersMax) loaded.merged else loaded
      }
    } finally room.give(newest.sum)
  }
}

private[store] object ContentLoader {

  /** Layers above this number become one. */
  val LayersMax = 8
}
