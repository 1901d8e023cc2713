package org.redisstate.core.protocol

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.{EncodedField, Segment}
import org.redisstate.core.ids.Keys

/** Adds snapshots to one partition (docs/format.md, section 7). Thread-safe. */
final class SnapshotCalls private[protocol] (
    calls: PartitionCalls,
    segments: SegmentIo,
    keepMs: Long) {
  import SnapshotCalls._

  private val id = calls.id

  /**
   * Stores blocks of a snapshot ahead of its entry.
   *
   * @param isBounded whether the partition has a bound, so that a script counts the blocks
   * @throws ShareFull if they do not fit into it
   */
  def stage(ident: String, fields: Seq[EncodedField], isBounded: Boolean = false): Unit =
    segments.stageSnapshot(ident, fields, isBounded)

  /** Drops staged blocks of a snapshot. Never throws: what it cannot drop expires. */
  def abort(ident: String): Unit = {
    val what = s"abort $ident of $id"
    try {
      calls.commands(what, Seq(Command("UNLINK", Keys.staged(id, ident))))
      ()
    } catch {
      case e: RedisStateException =>
        log.info("{} was not possible, its blocks expire by themselves: {}", what, e.getMessage)
    }
  }

  /**
   * Enters a snapshot whose blocks are staged, or in a file.
   *
   * @return false if the partition does not need it any more
   * @throws ShareFull if its staged blocks do not fit into the share
   */
  def add(snapshot: Segment): Boolean = {
    val what = s"add the snapshot of version ${snapshot.version} of $id"
    val args = Seq(
      snapshot.version.toString,
      snapshot.uid,
      snapshot.entry.ref,
      snapshot.entry.blocks.toString,
      snapshot.entry.text,
      keepMs.toString
    ) ++ SegmentPlaces.placed(snapshot)
    val keys = Seq(Keys.segment(id, snapshot.ident), Keys.staged(id, snapshot.ident))
    val reply = calls.keyed(what, Script.Snapshot, keys, args.map(Command.bytes))
    RoomMaker.isEntered(what, PartitionCalls.words(reply))
  }
}

private object SnapshotCalls {
  private val log = LoggerFactory.getLogger(classOf[SnapshotCalls])
}
