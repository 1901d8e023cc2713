package org.redisstate.core.protocol.manifest

import scala.collection.mutable

import org.redisstate.core.format.Segment
import org.redisstate.core.ids.Pin

/** Reads the fields of a partition's manifest (docs/format.md, section 5). */
private[protocol] object ManifestFields {

  /** Prefixes of segments set aside, and of places; an ident follows. */
  val AsidePrefix: String = "z:"
  val PlacePrefix: String = "a:"

  /** Prefixes of bytes counted for keys that no segment has yet, and of those staged for `P:n:`. */
  val LoosePrefix: String = "h:"
  val StagedPrefix: String = "h:n:"

  /** Prefix of hot runs. */
  val HotRunPrefix: String = "r:"

  /** Returns the deltas and snapshots, by field. */
  def segments(manifest: Map[String, String]): Map[String, Segment] = manifest.collect {
    case (field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
      field -> Segment.parse(field, entry)
  }

  /** Returns the segments that are set aside for a pin. */
  def aside(manifest: Map[String, String]): Iterator[Segment] = manifest.iterator.collect {
    case (name, value) if name.startsWith(AsidePrefix) && value.contains(' ') =>
      val (of, entry) = value.splitAt(value.indexOf(' '))
      Segment.parse(of, entry.drop(1))
  }

  /** Returns the opened version; 0 without one. */
  def opened(what: String, manifest: Map[String, String]): Pin = Pin(
    manifest.get("o").map(Stored.number(what, _)).getOrElse(0L),
    manifest.getOrElse("ou", ""))

  /** Returns whether the blocks of a segment are in Redis. */
  def isInRedis(manifest: Map[String, String])(segment: Segment): Boolean =
    segment.entry.blocks > 0 && !manifest.contains(PlacePrefix + segment.ident)

  /**
   * Returns the fields of the opened version's lineage, as far down as it goes, and its bases,
   * newest first: the complete versions, each with its field.
   */
  def lineage(
      segments: Map[String, Segment],
      opened: Pin): (collection.Set[String], Seq[(Long, String)]) = {
    val fields = mutable.Set.empty[String]
    val bases = mutable.ArrayBuffer.empty[(Long, String)]
    var at = opened
    var ended = false
    while (!ended && at.version > 0) {
      val delta = segments.get(Segment.deltaIdent(at.version, at.uid))
      val snapshot = Segment.snapshotField(at.version, at.uid)
      if (segments.contains(snapshot)) {
        fields += snapshot
        bases += at.version -> snapshot
      } else delta.filter(_.entry.complete).foreach(alone => bases += at.version -> alone.field)
      delta.foreach { found =>
        fields += found.field
        at = Pin(at.version - 1, found.entry.ref)
      }
      ended = delta.isEmpty
    }
    (fields, bases.toSeq)
  }
}
