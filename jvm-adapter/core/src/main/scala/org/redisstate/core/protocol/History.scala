package org.redisstate.core.protocol

import org.redisstate.core.format.Segment
import org.redisstate.core.ids.Pin

/**
 * Segments that the newest base of a partition makes history, chosen from the manifest alone
 * (docs/format.md, section 17).
 */
private[protocol] object History {
  import SegmentPlaces.{AsidePrefix, PlacePrefix}

  private val SegmentsMax = 100
  private val BytesMax = 64L << 20

  /** Fewer segments that have fewer bytes wait for others, so that files are not many. */
  private val SegmentsMin = 4
  private val BytesMin = 1L << 20

  /** Returns the segments in Redis that are older than the newest base, oldest first. */
  def of(manifest: Map[String, String]): Seq[Segment] = {
    val named = manifest.collect {
      case (field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
        field -> Segment.parse(field, entry)
    }
    val opened = manifest.get("o").map(Stored.number("choose history", _)).getOrElse(0L)
    val (lineage, bases) =
      Retention.lineageOf(named, Pin(opened, manifest.getOrElse("ou", "")))
    bases.headOption.fold(Seq.empty[Segment]) { case (base, field) =>
      val older = named.valuesIterator.filter { one =>
        lineage(one.field) && one.field != field && one.version <= base
      }
      val aside = manifest.iterator.collect {
        case (name, value) if name.startsWith(AsidePrefix) && value.contains(' ') =>
          val (of, entry) = value.splitAt(value.indexOf(' '))
          Segment.parse(of, entry.drop(1))
      }.filter(_.version <= base)
      (older ++ aside).toSeq.distinctBy(_.ident).filter { one =>
        one.entry.blocks > 0 && !manifest.contains(PlacePrefix + one.ident)
      }.sortBy(one => (one.version, one.isSnapshot, one.ident))
    }
  }

  /**
   * Returns as many of them as one file takes: a bounded number and size, or one larger segment.
   * Empty where they are too few for a file.
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
