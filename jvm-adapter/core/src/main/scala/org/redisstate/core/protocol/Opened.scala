package org.redisstate.core.protocol

import org.redisstate.core.format.Segment
import org.redisstate.core.ids.Pin

/**
 * What `open` found: apply the segments, oldest first, over the version `start`.
 *
 * @param held whether the caller's run holds the partition
 * @param start a pin the caller has cached, or [[Pin.Empty]] when the oldest segment stands alone
 * @param segments newest first
 */
final case class Opened(
    pin: Pin,
    held: Boolean,
    opened: Long,
    floor: Long,
    start: Pin,
    segments: Seq[Segment])

/** A segment that `open` named is not whole any more: maintenance replaced it, or it was destroyed. */
final class SegmentGone(val segment: Segment) extends RuntimeException(segment.ident)

final case class RetainReport(floor: Long, dropped: Long, droppedBytes: Long, kept: Long)

/** @param damaged what is wrong with published segments, one line each */
final case class VerifyReport(segments: Int, damaged: Seq[String])

/**
 * How a partition is kept.
 *
 * @param versionsToRetain how many versions below the opened one stay loadable
 * @param keepMs 0, or the expiry of every key of an ephemeral checkpoint
 */
final case class ProtocolSettings(versionsToRetain: Int, keepMs: Long)

object ProtocolSettings {

  /** A staged segment that nobody publishes dies after this time. */
  val StagedTtlMs: Long = 24L * 3600 * 1000

  /** A segment that was dropped lives this long for readers under way. */
  val DroppedTtlMs: Long = 10L * 60 * 1000
}
