package org.redisstate.core.protocol

import scala.collection.mutable

import org.redisstate.core.errors.StateLostException
import org.redisstate.core.format.{BlockSigner, Segment}
import org.redisstate.core.ids.Pin

/**
 * Result of `open`: apply the segments, oldest first, over the version `start`.
 *
 * @param held whether the caller's run holds the partition, or contends for it
 * @param start a pin the caller has cached, or [[Pin.Empty]] when the oldest segment stands alone
 * @param segments newest first
 * @param timeS what a version on top of this one takes for its time: seconds since 1970, 0 unless asked for
 */
final case class Opened(
    pin: Pin,
    held: Boolean,
    opened: Long,
    floor: Long,
    start: Pin,
    segments: Seq[Segment],
    timeS: Long = 0) {

  /** Time of the version; 0 where no family has a time to live. None if its entry is not listed. */
  def time: Option[Long] = segments.headOption.map(_.entry.time)
}

/** A listed segment is no longer whole: maintenance replaced it, or it was destroyed. */
final class SegmentGone(val segment: Segment) extends RuntimeException(segment.ident) {

  /** Returns the error for a segment that the manifest still names, so that it was destroyed. */
  def lost(what: String): StateLostException =
    if (segment.gen.isEmpty) {
      new StateLostException(
        s"$what: ${segment.ident} is in the manifest, but blocks of it are missing. Likely: eviction, or a " +
          "restart from older data. Nothing was changed.")
    } else {
      new StateLostException(
        s"$what: this checkpoint was forked from checkpoint ${segment.gen}, which does not have blocks of " +
          s"${segment.ident} any more. Likely: that checkpoint was purged with --force; else eviction, or a restart " +
          "from older data. Restore the server's data, or this checkpoint from a copy or an export, or fork anew. " +
          "Nothing was changed.")
    }
}

/**
 * Fields of a segment that are read together.
 *
 * @param average bytes of its blocks
 * @param last whether nothing of the segment is left after this
 */
final case class Piece(
    segment: Segment,
    fields: Seq[String],
    average: Long,
    last: Boolean = false) {
  def bytes: Long = average * fields.size
}

object Piece {
  private val GroupBytesMax = 1L << 20
  private val GroupFieldsMax = 1024

  /** Runs of pieces for one round trip each: about 1 MiB, or a single larger piece. */
  def grouped(pieces: Seq[Piece]): Seq[Seq[Piece]] = {
    val groups = mutable.ArrayBuffer.empty[mutable.ArrayBuffer[Piece]]
    var bytes = 0L
    var fields = 0
    pieces.foreach { piece =>
      bytes += piece.bytes
      fields += piece.fields.size
      if (groups.isEmpty || bytes > GroupBytesMax || fields > GroupFieldsMax) {
        groups += mutable.ArrayBuffer.empty
        bytes = piece.bytes
        fields = piece.fields.size
      }
      groups.last += piece
    }
    groups.iterator.map(_.toSeq).toSeq
  }
}

final case class RetainReport(floor: Long, dropped: Long, droppedBytes: Long, kept: Long)

/** Spark's commit log of a query: an entry is created by one run alone, after its batch. */
trait CommitLog {

  /** Returns whether the log has the batch after this version, or a newer one. */
  def hasBatchFrom(version: Long): Boolean
}

/** Spark's `checkpointFormatVersion` of a run. */
sealed abstract class CheckpointFormat(val number: Int)

object CheckpointFormat {

  /** Spark names versions by their number: of the attempts at one, the last to commit counts. */
  case object V1 extends CheckpointFormat(1)

  /** Spark names versions by number and uid: attempts stay side by side. */
  case object V2 extends CheckpointFormat(2)
}

/**
 * Settings of a partition.
 *
 * @param versionsToRetain how many versions below the opened one stay loadable
 * @param keepMs 0, or the expiry of every key of an ephemeral checkpoint
 * @param format what the run's commits are told apart by
 * @param signer signs blocks, if any does
 * @param isBounded whether the query bounds its memory, so that the partition may have a hot run
 */
final case class ProtocolSettings(
    versionsToRetain: Int,
    keepMs: Long,
    format: CheckpointFormat,
    signer: Option[BlockSigner] = None,
    isBounded: Boolean = false)

object ProtocolSettings {

  /** Lifetime of a staged segment that is never published. */
  val StagedTtlMs: Long = 24L * 3600 * 1000

  /** Lifetime of a dropped segment, for readers under way. */
  val DroppedTtlMs: Long = 10L * 60 * 1000

  /**
   * Time from a fork's last foreign segment to the end of its pin: a fail-over may bring one back.
   */
  val DetachAfterMs: Long = 24L * 3600 * 1000
}
