package org.redisstate.core.protocol

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.format.{EncodedField, Entry, Segment}
import org.redisstate.core.ids.Pin

/** Sets previews of one partition (docs/format.md, section 16). Thread-safe. */
final class PreviewCalls private[protocol] (calls: PartitionCalls, segments: SegmentIo) {
  import PreviewCalls._

  /**
   * Stores the blocks of a slice.
   *
   * @throws ShareFull if they do not fit into the share of the partition
   */
  def stage(ident: String, fields: Seq[EncodedField]): Unit =
    segments.stageSlice(ident, fields, SliceTtlMs)

  /**
   * Replaces the preview of the partition.
   *
   * @param parent version that the batch is based on
   * @param number of the preview, rising within the attempt
   * @param known preview that the caller knows of
   * @param slices numbers and entries, the newest first
   */
  def set(
      runId: String,
      parent: Pin,
      uid: String,
      number: Long,
      known: String,
      validMs: Long,
      slices: Seq[(Int, Entry)]): Answer = {
    val args = Seq(
      runId,
      parent.version.toString,
      parent.uid,
      uid,
      number.toString,
      known,
      validMs.toString,
      SliceTtlMs.toString) ++ slices.flatMap { case (slice, entry) =>
      Seq(slice.toString, entry.text)
    }
    val idents = slices.map { case (slice, _) =>
      Segment.sliceIdent(parent.version + 1, uid, slice)
    }
    val what = s"set a preview of version ${parent.version + 1} of ${calls.id}"
    PartitionCalls.words(
      calls.script(what, Script.Preview, idents, args.map(Command.bytes))) match {
      case Seq("OK") => IsSet
      case Seq("OTHER", found, valid) => Other(found, valid == "1")
      case Seq("INCOMPLETE", _) => Incomplete
      case reply => Refused(reply.mkString(" "))
    }
  }
}

object PreviewCalls {

  /** Slices outlive their preview by the time of a long read. */
  val SliceTtlMs: Long = 2 * 60 * 1000

  /** Answer of a server to a preview. */
  sealed trait Answer
  case object IsSet extends Answer

  /**
   * Another preview is there than the caller knew of.
   *
   * @param known `<uid> <number>`, or empty
   * @param isValid whether readers would take it
   */
  final case class Other(known: String, isValid: Boolean) extends Answer

  /** The server lost blocks. */
  case object Incomplete extends Answer

  /** The attempt has no previews any more. */
  final case class Refused(why: String) extends Answer
}
