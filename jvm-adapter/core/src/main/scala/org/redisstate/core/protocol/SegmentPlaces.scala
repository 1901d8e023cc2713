package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.UTF_8
import java.util

import org.redisstate.core.backend.Command
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.{Place, Segment}
import org.redisstate.core.ids.{Keys, PartitionId}
import org.redisstate.core.protocol.manifest.ManifestFields

/** Source of a segment's blocks. */
private[protocol] sealed trait Source {

  /** Partition that the segment belongs to, whose key the signatures cover. */
  def owner: PartitionId
}

private[protocol] object Source {
  final case class Redis(owner: PartitionId) extends Source
  final case class File(owner: PartitionId, place: Place.InFile) extends Source
}

/**
 * Present places of the segments of a partition. A listing has the place of a segment at that time;
 * the segment, or one of the parent of a fork, may move to a file at any time. Thread-safe.
 */
private[protocol] final class SegmentPlaces(calls: PartitionCalls) {
  import ManifestFields.{AsidePrefix, PlacePrefix}
  import SegmentPlaces._

  /** Segments whose place differs from their listing. */
  @GuardedBy("this") private val moved =
    new util.LinkedHashMap[Segment, Source](MovedMax, 0.75f, true) {
      override def removeEldestEntry(eldest: util.Map.Entry[Segment, Source]): Boolean =
        size > MovedMax
    }

  def of(segment: Segment): Source =
    synchronized(Option(moved.get(segment))).getOrElse(listed(segment))

  private def listed(segment: Segment): Source = sourceOf(calls.id, segment.place)

  private def sourceOf(at: PartitionId, place: Place): Source = place match {
    case file: Place.InFile => Source.File(at, file)
    case Place.Foreign(gen) => Source.Redis(at.ofGen(gen))
    case Place.Own => Source.Redis(at)
  }

  /** Forgets the places of segments that are newly listed. */
  def forget(segments: Seq[Segment]): Unit = synchronized(segments.foreach(moved.remove))

  /**
   * Reads the present place of a segment whose blocks are missing.
   *
   * @return the place, which may be unchanged
   * @throws SegmentGone if its manifest does not name it any more
   */
  def lookAgain(segment: Segment): Source = {
    val owner = segment.owner(calls.id)
    val command = Command(
      "HMGET",
      Keys.meta(owner),
      segment.field,
      AsidePrefix + segment.ident,
      PlacePrefix + segment.ident)
    val found =
      calls.commands(s"look for ${segment.ident} of $owner", Seq(command)).head match {
        case fields: Seq[_] => fields.map {
            case bytes: Array[Byte] => Some(new String(bytes, UTF_8))
            case _ => None
          }
        case _ => Nil
      }
    val isNamed = found.headOption.flatten.contains(segment.text) ||
      found.lift(1).flatten.contains(s"${segment.field} ${segment.entry.text}")
    if (!isNamed) throw new SegmentGone(segment)
    val place = found.lift(2).flatten
    val now = sourceOf(owner, Place.parse(segment.ident, place.getOrElse("")))
    synchronized {
      if (now == listed(segment)) moved.remove(segment) else moved.put(segment, now)
    }
    now
  }
}

private[protocol] object SegmentPlaces {
  private val MovedMax = 1024

  /** Arguments of a script that enters a segment: its place, and the length of its file. */
  def placed(segment: Segment): Seq[String] = segment.place match {
    case at: Place.InFile => Seq(at.text, (at.offset + at.bytes).toString)
    case _ => Nil
  }
}
