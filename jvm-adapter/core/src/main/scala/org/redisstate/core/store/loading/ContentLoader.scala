package org.redisstate.core.store.loading

import org.redisstate.core.format.Entry
import org.redisstate.core.local.{Content, LayerSizes}
import org.redisstate.core.local.blocks.Room

/** Use that a caller makes of the rows of a version. */
private[store] sealed trait Purpose

private[store] object Purpose {

  /** They stay in memory; each is read when it is asked for, or in the background. */
  case object Keep extends Purpose

  /** They stay in memory. All deltas are read at once, so that a missing one is found before any use. */
  case object Check extends Purpose

  /** A pass, bucket by bucket: nothing stays. */
  case object Pass extends Purpose

  /** A pass over a version in one segment, which may have large buckets. */
  case object Stream extends Purpose
}

/** Builds the content of a version from its segments. */
private[store] final class ContentLoader(
    loader: SegmentLoader,
    room: Room,
    sizes: LayerSizes) {

  /**
   * Deltas over what is below them. Those that memory has room for are kept whole, as long as they
   * can become one layer; older ones are read bucket by bucket, together with the snapshot.
   *
   * @param below a content that is here, if they stand on one
   * @param bottom a snapshot, if they stand on one
   * @param deltas oldest first
   * @param live rows of the version
   * @return None when they do not fit over what is here
   */
  def over(
      below: Option[Content],
      bottom: Option[WholeSegment],
      deltas: Seq[WholeSegment],
      live: Long,
      purpose: Purpose): Option[Content] = {
    val once = purpose == Purpose.Stream
    val isBottom = below.isEmpty && bottom.isEmpty
    val alone =
      deltas.headOption.count(d => isBottom && (once || ContentLoader.isBase(d.head.segment.entry)))
    val above = if (purpose == Purpose.Pass) Nil else deltas.drop(alone)
    var together = 0L
    val newest =
      above.reverseIterator.map(d => WholeReader.bytesOf(d.head.segment.entry)).takeWhile { bytes =>
        together += bytes
        together <= sizes.mergedMax && room.offer(bytes)
      }.toSeq
    try {
      val (large, small) = deltas.splitAt(deltas.length - newest.length)
      def changed =
        // The rows of a hot run are asked for more often than others: none of them waits for its base.
        if (purpose == Purpose.Keep && below.isEmpty && !small.exists(_.head.segment.isHotRun))
          loader.changed(bottom, large, small, live)
        else None
      changed.map(new Content(_, Nil)).orElse {
        base(below, bottom, large, once).map { content =>
          val loaded = content.over(new LayerLoader(loader.whole, sizes).layers(small))
          if (loaded.layers.length > ContentLoader.LayersMax) loaded.merged(sizes.mergedMax)
          else loaded
        }
      }
    } finally room.give(newest.sum)
  }

  private def base(
      below: Option[Content],
      bottom: Option[WholeSegment],
      large: Seq[WholeSegment],
      once: Boolean): Option[Content] =
    if (large.isEmpty) below.orElse(bottom.map(b => new Content(loader.base(b.head), Nil)))
      .orElse(Some(Content.empty()))
    else if (below.isEmpty) Some(new Content(loader.together(bottom.toSeq ++ large, once), Nil))
    else None
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
