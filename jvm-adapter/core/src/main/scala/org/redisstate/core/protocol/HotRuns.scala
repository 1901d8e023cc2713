package org.redisstate.core.protocol

import scala.util.Try

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.format.{EncodedField, Segment}
import org.redisstate.core.ids.{Keys, Pin}
import org.redisstate.core.protocol.manifest.{ManifestFields, Stored}

/**
 * Hot runs of a bounded partition: the rows that changed since a base, in Redis (docs/format.md,
 * section 18). No version needs them.
 */
final class HotRuns private[protocol] (calls: PartitionCalls, segments: SegmentIo) {
  import PartitionCalls.words

  private val id = calls.id

  /**
   * Stages the blocks of a hot run, enters it, and drops the former one. If there is no room, the
   * former one is dropped all the same, so that the next hot run finds some.
   *
   * @param over base of the hot run
   * @return false if the partition does not need it any more, or has no room
   */
  def add(run: Segment, over: Pin, fields: Seq[EncodedField]): Boolean =
    try {
      segments.stageSnapshot(run.ident, fields, isBounded = true)
      enter(run, over)
    } catch {
      case _: ShareFull =>
        unstage(run.ident)
        drop(): Unit
        false
      case e: Throwable =>
        Try(unstage(run.ident)).failed.foreach(e.addSuppressed)
        throw e
    }

  private def unstage(ident: String): Unit =
    calls.commands(
      s"drop blocks of $ident of $id",
      Seq(Command("UNLINK", Keys.staged(id, ident)))): Unit

  private def enter(run: Segment, over: Pin): Boolean = {
    val what = s"add the hot run of version ${run.version} of $id"
    val args = Seq(
      run.version.toString,
      run.uid,
      run.entry.ref,
      over.version.toString,
      over.uid,
      run.entry.text)
    val keys = Seq(Keys.segment(id, run.ident), Keys.staged(id, run.ident))
    RoomMaker.isEntered(
      what,
      words(calls.keyed(what, Script.HotRun, keys, args.map(Command.bytes))))
  }

  /** Drops the hot runs; returns their number. */
  def drop(): Int = {
    val what = s"drop the hot runs of $id"
    words(calls.script(what, Script.HotRun, Nil)) match {
      case Seq("OK", dropped) => Stored.number(what, dropped).toInt
      case reply => throw Refusal.of(what, reply, 0, id)
    }
  }
}

private[protocol] object HotRuns {

  /** Returns whether a reply of the script `open` has a hot run whose entry is malformed. */
  def listsDamaged(reply: Seq[String]): Boolean = reply.zip(reply.drop(1)).exists {
    case (field, entry) =>
      field.startsWith(ManifestFields.HotRunPrefix) && Try(Segment.parse(field, entry)).isFailure
  }
}
