package org.redisstate.core.protocol

import scala.annotation.tailrec

import org.redisstate.core.backend.Script
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.protocol.manifest.{Retention, Stored}

/** Retention of one partition: carries out the plan of [[Retention]], then ends expired pins. */
private[protocol] final class RetentionUpkeep(calls: PartitionCalls, pins: PinUpkeep) {
  import PartitionCalls.words
  import RetentionUpkeep._

  private val id = calls.id

  /**
   * Drops segments that no retained version needs from the manifest, a few with each call. Those
   * that only an expired pin held are dropped by the next retention.
   */
  def run(): RetainReport = {
    val what = s"retention of $id"
    var manifest = Map.empty[String, String]
    @tailrec
    def carryOut(tries: Int, before: RetainReport): RetainReport = {
      manifest = calls.manifest(what)
      manifest.get("f") match {
        case None => RetainReport(0, 0, 0, 0)
        case Some(found) if !PartitionCalls.Formats(found) =>
          throw refusal(what, Seq("FORMAT", found))
        case Some(_) =>
          val plan = Retention.of(manifest)
          var report = before.copy(floor = plan.base, kept = plan.kept.toLong)
          val isDone = plan.parts.forall { case (floor, fields) =>
            val dropped = drop(what, plan, floor, fields)
            dropped.foreach { case (segments, bytes) =>
              report = report.copy(
                dropped = report.dropped + segments,
                droppedBytes = report.droppedBytes + bytes)
            }
            dropped.isDefined
          }
          if (isDone || tries >= PlansMax) report else carryOut(tries + 1, report)
      }
    }
    val report = carryOut(1, RetainReport(0, 0, 0, 0))
    pins.run(manifest)
    report
  }

  /**
   * Drops fields; returns the number of segments and their bytes, or None if the plan is outdated.
   */
  private def drop(
      what: String,
      plan: Retention,
      floor: Long,
      fields: Seq[String]): Option[(Long, Long)] = {
    val args = Seq(
      ProtocolSettings.DroppedTtlMs.toString,
      plan.epoch,
      plan.opened.version.toString,
      plan.opened.uid,
      floor.toString,
      plan.base.toString,
      plan.carrier) ++ fields
    words(calls.script(what, Script.Retain, args)) match {
      case Seq("OK", dropped, bytes) =>
        Some((Stored.number(what, dropped), Stored.number(what, bytes)))
      case Seq("STALE") | Seq("EMPTY") => None
      case reply => throw refusal(what, reply)
    }
  }

  private def refusal(what: String, reply: Seq[String]): RedisStateException =
    Refusal.of(what, reply, 0, id)
}

private object RetentionUpkeep {
  private val PlansMax = 4
}
