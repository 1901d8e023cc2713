package org.redisstate.core.protocol.manifest

import org.redisstate.core.format.Segment

/**
 * Chooses the segments that are history since the newest base of a partition, from the manifest
 * alone (docs/format.md, section 17).
 */
private[protocol] object HistoryPlan {
  private val SegmentsMax = 100
  private val BytesMax = 64L << 20

  /** Least segments of a file, unless they have many bytes: fewer wait for others. */
  private val SegmentsMin = 4
  private val BytesMin = 1L << 20

  /** Returns the segments in Redis that are older than the newest base, oldest first. */
  def of(manifest: Map[String, String]): Seq[Segment] = {
    val named = ManifestFields.segments(manifest)
    val (lineage, bases) =
      ManifestFields.lineage(named, ManifestFields.opened("choose history", manifest))
    bases.headOption.fold(Seq.empty[Segment]) { case (base, field) =>
      val older = named.valuesIterator.filter { one =>
        lineage(one.field) && one.field != field && one.version <= base
      }
      (older ++ ManifestFields.aside(manifest).filter(_.version <= base)).toSeq
        .distinctBy(_.ident)
        .filter(ManifestFields.isInRedis(manifest))
        .sortBy(one => (one.version, one.isSnapshot, one.ident))
    }
  }

  /**
   * Returns as many segments as one file takes: a bounded number and size, or one larger segment.
   * Empty if they are too few for a file.
   */
  def ofFile(segments: Seq[Segment]): Seq[Segment] =
    if (segments.size < SegmentsMin && segments.iterator.map(_.entry.bytes).sum < BytesMin) Nil
    else fitting(segments)

  private def fitting(segments: Seq[Segment]): Seq[Segment] = {
    var bytes = 0L
    val taken = segments.take(SegmentsMax).takeWhile { one =>
      bytes += one.entry.bytes
      bytes <= BytesMax
    }
    if (taken.isEmpty) segments.take(1) else taken
  }
}
