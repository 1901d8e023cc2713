package org.apache.spark.sql.redisstate.checkpoint

import scala.annotation.tailrec

import org.redisstate.core.errors.{FencedException, UnavailableException}
import org.redisstate.core.protocol.names.GenClaims

/**
 * One gen for a checkpoint, whoever decides on it: the driver before the first task, or the first
 * task that writes where no listener is set. The file decides. Redis makes those agree who see no
 * file: Spark lets no driver begin in a state folder that has files, and not every file system can
 * refuse the second file.
 */
private[redisstate] final class CheckpointIdentity(file: MarkerFile, claims: GenClaims) {
  import CheckpointIdentity._

  /**
   * Returns the gen under which a run is registered, decided by the driver before the first task.
   *
   * @param version that the first tasks will ask for
   * @param stateful whether there will be any; None if not and there is no marker
   */
  def begin(
      runId: String,
      version: Long,
      stateful: Boolean,
      adoptMoved: Boolean): Option[String] = {
    val found = file.open(if (stateful) version else 0, adoptMoved)
    if (found.exists(_.pathHash != file.pathHash)) file.adopt()
    found.map(_.gen).orElse(Option.when(stateful)(decide(genOf(runId)).fold(_.gen, gen => gen)))
  }

  /**
   * Returns the gen for a task that found no marker. Another task may have made one since then, and
   * a claim is dropped only after that.
   */
  def proposed(mine: String): String =
    claims.look(file.pathHash).orElse(file.find(expected = false).map(_.gen)).getOrElse(mine)

  /**
   * Returns the marker of a checkpoint without a version; makes it unless it exists.
   *
   * @param mine the gen if nobody has decided yet: one under which nothing was written
   */
  def settle(mine: String): Marker = decide(mine).fold(marker => marker, make)

  /** Returns the marker if it exists, else the gen that it will have. */
  private def decide(mine: String): Either[Marker, String] = {
    @tailrec def attempt(left: Int): Either[Marker, String] = file.find(expected = false) match {
      case Some(marker) => Left(marker)
      case None =>
        val holder = claims.take(file.pathHash, mine)
        // It is noted in Redis that there is a marker after that was made. So it is there by now,
        // or was deleted.
        val used = holder.exists(claims.isUsed)
        file.find(expected = false) match {
          case Some(marker) =>
            claims.drop(file.pathHash, mine)
            Left(marker)
          case None if used && holder.contains(mine) =>
            claims.drop(file.pathHash, mine)
            throw file.missing("write")
          case None if used || holder.isEmpty =>
            if (left == 0) throw contested
            holder.foreach(claims.drop(file.pathHash, _))
            attempt(left - 1)
          case None => Right(holder.get)
        }
    }
    attempt(Tries)
  }

  private def make(gen: String): Marker = {
    file.create(Marker(gen, file.pathHash))
    val made = file.find(expected = true).getOrElse(throw file.missing("write"))
    claims.drop(file.pathHash, gen)
    made
  }

  /**
   * Confirms the gen of a writer before its first write.
   *
   * @param gen that it has opened
   * @param mine what it proposes if no marker was there then; None if one was
   * @throws FencedException if the checkpoint has another gen by now
   */
  def confirm(gen: String, mine: Option[String], adoptMoved: Boolean): Unit = {
    val marker =
      mine.fold(file.find(expected = true).getOrElse(throw file.missing("write")))(settle)
    if (marker.gen != gen) {
      throw new FencedException(
        s"write the state of a checkpoint as gen $gen: its marker file ${MarkerFile.Name} has gen " +
          s"${marker.gen}, because another run of the query made it since this task opened the state. Nothing was " +
          "written. When Spark runs the task again, it continues under that gen if its run is still " +
          "the newest; any other run is over.")
    }
    if (marker.pathHash != file.pathHash && adoptMoved) file.adopt()
  }

  private def contested = new UnavailableException(
    "decide on the gen of a checkpoint: other runs keep creating and deleting it. Start the " +
      "query again when no other run uses the folder.")
}

private[redisstate] object CheckpointIdentity {
  private val Tries = 5

  /** Returns the gen that all executors of a run propose. */
  def genOf(runId: String): String = runId.replace("-", "")
}
