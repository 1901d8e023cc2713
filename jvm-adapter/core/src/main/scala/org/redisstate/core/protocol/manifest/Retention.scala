package org.redisstate.core.protocol.manifest

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.Segment
import org.redisstate.core.ids.Pin

/**
 * Plan of retention, made from the manifest alone: the segments that no retained version needs. A
 * script blocks the server while it runs, so the plan is made here, from one read of the manifest,
 * and carried out in parts of bounded size (docs/format.md, section 8).
 *
 * @param epoch of the manifest; the plan is valid in this epoch, while the query continues from
 *   `opened`
 * @param floor before; `base` is the floor afterwards
 * @param carrier manifest field of the segment that all retained versions need; empty without one
 * @param gone manifest fields
 * @param kept number of segments that stay
 */
private[protocol] final case class Retention(
    epoch: String,
    opened: Pin,
    floor: Long,
    base: Long,
    carrier: String,
    gone: Seq[String],
    kept: Int) {

  /** A few fields at a time, each with the floor that the manifest must have before. */
  def parts: Iterator[(Long, Seq[String])] = {
    val groups = if (gone.isEmpty) Iterator(Nil) else gone.grouped(Retention.FieldsMax)
    if (gone.isEmpty && base == floor) Iterator.empty
    else groups.zipWithIndex.map { case (fields, i) => (if (i == 0) floor else base, fields) }
  }
}

private[core] object Retention {
  private[core] val FieldsMax = 100

  /**
   * Computes the plan from values in Redis: `opened` and `retained` of the holding run. Neither the
   * caller's conf nor the newest version counts.
   */
  def of(manifest: Map[String, String]): Retention = {
    def number(field: String): Long = manifest.get(field).fold(0L) { text =>
      text.toLongOption.getOrElse(
        throw new FormatException(s"the field $field of a manifest is not a number"))
    }
    val opened = Pin(number("o"), manifest.getOrElse("ou", ""))
    val floor = number("w")
    val segments = ManifestFields.segments(manifest)
    val (lineage, bases) = ManifestFields.lineage(segments, opened)
    val carrier = bases.find(_._1 <= math.max(floor, opened.version - number("n")))
    val base = carrier.map(_._1)
    val keptBases = spaced(bases.map(_._1), base, math.max(1, number("n") / 2))
    val gone = segments.iterator.collect {
      case (field, s)
          if s.version <= opened.version && !(lineage(field) && isNeeded(s, base, keptBases)) =>
        field
    }.toSeq
    // What was set aside for a pin that has ended.
    val unpinned = manifest.keysIterator.filter { field =>
      field.startsWith(ManifestFields.AsidePrefix) && !manifest.contains("y:" + field.drop(2))
    }
    Retention(
      manifest.getOrElse("e", ""),
      opened,
      floor,
      math.max(floor, base.getOrElse(floor)),
      carrier.fold("")(_._2),
      (gone ++ unpinned).sorted,
      segments.size - gone.size)
  }

  /**
   * Returns the base that carries the floor, the newest base, and one for each `spacing` above the
   * floor.
   */
  private def spaced(bases: Seq[Long], base: Option[Long], spacing: Long): Set[Long] = {
    var last = base.getOrElse(0L)
    bases.reverseIterator.filter { at =>
      val stays =
        base.contains(at) || at == bases.head || (at > last && at - last >= spacing)
      if (stays) last = at
      stays
    }.toSet
  }

  /** Returns whether a retained version needs a segment of the lineage. */
  private def isNeeded(s: Segment, base: Option[Long], keptBases: Set[Long]): Boolean =
    (!s.isSnapshot || keptBases(s.version)) &&
      base.forall(at =>
        s.version > at || (s.version == at && (s.isSnapshot || s.entry.complete)))
}
