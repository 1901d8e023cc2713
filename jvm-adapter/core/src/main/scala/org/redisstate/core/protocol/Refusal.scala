package org.redisstate.core.protocol

import org.redisstate.core.errors._
import org.redisstate.core.ids.PartitionId

/** Turns a script's refusal into the named error with what was found and what to do next. */
private[protocol] object Refusal {

  /** Stands in place of a format number, before the checkpoint's id (docs/format.md, section 12). */
  private val Purged = "purged:"

  def of(what: String, reply: Seq[String], version: Long, id: PartitionId): RedisStateException =
    reply match {
      case Seq("FENCED", reason, found, by @ _*) =>
        new FencedException(s"$what: ${fenced(reason, found, by.mkString, id)}")
      case Seq("TAKEN") =>
        new FencedException(
          s"$what: another process committed other rows under the id of this attempt, so one of " +
            "the two was cloned. Spark runs the task again; nothing was changed.")
      case Seq("STATE_LOST", latest, _*) =>
        new StateLostException(
          s"$what: ${behind(version)}, does not exist: Redis has ${held(latest)}. Likely: another server or " +
            "database than before, a flush, a fail-over to a replica that lagged, a restart from an older AOF or RDB, " +
            "or eviction. Nothing was changed.")
      case Seq("VERSION_EXPIRED", floor, _*) =>
        new VersionExpiredException(
          s"$what: version $version no longer exists: retention keeps version $floor and newer ones. " +
            "Ask for a newer version; to keep more from now on, raise versionsToRetain.")
      case Seq("FORMAT", found) if found.startsWith(Purged) =>
        purged(what, found.stripPrefix(Purged))
      case Seq("FORMAT", found) =>
        new FormatException(
          s"$what: Redis holds format $found, and this release reads formats 1 and 2. " +
            "Use the release of redis-state that wrote it.")
      case Seq("INCOMPLETE", found) =>
        new UnavailableException(
          s"$what: the server keeps losing staged blocks (it has $found). A volatile-* " +
            "eviction policy does that when memory is short: give the server more memory.")
      case Seq("GONE") =>
        new UnavailableException(
          s"$what: its file was condemned before it was entered, since the writer took longer than a day. " +
            "Nothing was changed. Try again.")
      case Seq("UNSURE", found, by) =>
        new UnavailableException(
          s"$what: run $by continues (it opened version $found) while this run reads Spark's commit log. Try again.")
      case Seq("REOPEN", found) =>
        new UnavailableException(
          s"$what: the server keeps forgetting that the version was opened (it has version $found open). " +
            "It returns to older data again and again: make sure that it stays up and that its " +
            "fail-overs end, then try again.")
      case Seq("EPHEMERAL") =>
        new ConfigException(
          s"$what: the checkpoint is ephemeral: its state expires when its run ends. Only a " +
            "checkpoint that stays can be kept.")
      case Seq("LIMIT", owners) =>
        new LimitException(
          s"$what: $owners forks and kept versions hold the same segment, which is the limit. " +
            "Drop some of them, or keep fewer versions (keepEvery, keepFor).")
      case other =>
        new InternalException(s"$what: the script answered '${other.mkString(" ").take(200)}'.")
    }

  /** Somebody purged the checkpoint within the last day. */
  def purged(what: String, gen: String): StateLostException =
    new StateLostException(
      s"$what: the checkpoint was purged, and its keys expire within a day of the purge. " +
        s"Bring it back with `redis-state purge --gen $gen --recall`; or start a new " +
        "checkpoint.",
      isPurged = true
    )

  /** Batch n loads version n and makes version n + 1. */
  private def behind(version: Long): String =
    if (version > 0) s"version $version, the state after batch ${version - 1}"
    else "version 0, the empty state"

  private def held(latest: String): String = latest.toLongOption match {
    case Some(version) if version > 0 => s"nothing newer than ${behind(version)}"
    case _ => "nothing of this partition"
  }

  /** Spark's log has the batch that this run was about to write: another run was faster. */
  def secondStart(what: String, by: String, batch: Long): RedisStateException =
    new FencedException(
      s"$what: batch $batch is already in Spark's commit log, and run $by holds the partition: " +
        "the query runs twice on this checkpoint, and this start lost. Nothing was " +
        "changed; the other run continues.")

  private def fenced(
      reason: String,
      found: String,
      by: String,
      id: PartitionId): String = reason match {
    case "opened" =>
      s"version $found is already open: another attempt of the query has overtaken this one. " +
        "If Spark runs the task again, it starts from the right version; nothing was changed."
    case "pinned" =>
      "the query continued from the version of another attempt, not from the one that this task read. " +
        "Spark runs the task again; nothing was changed."
    case "epoch" =>
      s"run $by of the query holds $id (epoch $found). This run is over; nothing was changed."
    case "unregistered" =>
      "this run was not registered by its driver, and continues neither from the opened version " +
        s"($found) nor from a commit after it. Set " +
        "spark.sql.streaming.streamingQueryListeners as redis_state.configure does and start the " +
        "query again."
    case _ =>
      "the version that this attempt read was replaced by that of another attempt. Spark runs " +
        "the task again."
  }
}
