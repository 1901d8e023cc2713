package org.redisstate.core.protocol

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.Script
import org.redisstate.core.format.Place
import org.redisstate.core.places.{BlockFileName, FileFolders}
import org.redisstate.core.protocol.manifest.ManifestFields

/** Checks in the checkpoint's folder before a file is deleted. */
trait DeletionChecks {

  /**
   * Returns whether the folder of the files belongs to the checkpoint alone. In any other folder,
   * another server may know a file that this one does not know.
   */
  def ownsFolder: Boolean

  /**
   * Returns the newest batch of Spark's commit log, or why nothing may be deleted: the marker is
   * another gen's, or there is no log.
   */
  def newestBatch(): Either[String, Long]

  /** Returns those of the files that a complete copy names. */
  def copied(files: Seq[String]): Set[String]
}

/**
 * Settings of the upkeep of files.
 *
 * @param graceMs how long a condemned file stays
 * @param deletes whether it is deleted then; else it is only reported
 */
final case class FilePolicy(graceMs: Long, deletes: Boolean, checks: DeletionChecks)

/**
 * Unneeded files.
 *
 * @param due number of files that were condemned for longer than the grace, and still exist
 * @param bytes of these files
 * @param unknown files in a shared folder that Redis does not know; found by a sweep
 */
final case class FileReport(condemned: Int, deleted: Int, due: Int, bytes: Long, unknown: Int = 0)

/**
 * Condemns files of a partition that got no segment, and deletes files that were condemned long ago
 * (docs/format.md, section 17). A listing alone decides nothing.
 */
private[protocol] final class FileUpkeep(calls: PartitionCalls, folders: Option[FileFolders]) {
  import FileUpkeep._
  import PartitionCalls.words

  private val id = calls.id

  /** One pass, of a bounded number of files. */
  def run(policy: FilePolicy, sweeps: Boolean): FileReport = {
    val what = s"look after the files of $id"
    val rows = rowsOf(what)
    val now = calls.nowMs(what)
    val forgotten = rows.filter(row => row.state == Announced && row.ageMs(now) >= AnnouncedMaxMs)
    val unknown = if (sweeps) unknownOf(what, rows) else Nil
    val owned = policy.checks.ownsFolder
    val lost = forgotten.map(_.file) ++ (if (owned) unknown else Nil)
    val condemned = lost.take(FilesMax).count(condemn(what, _))
    val due = rows.filter(row => row.state == Condemned && row.ageMs(now) >= policy.graceMs)
    val deleted = if (policy.deletes && owned && due.nonEmpty) delete(what, policy, due) else Nil
    val left = due.filterNot(deleted.contains)
    val strange = if (owned) 0 else unknown.size
    FileReport(condemned, deleted.size, left.size, left.iterator.map(_.bytes).sum, strange)
  }

  /**
   * Returns the files in the folder that Redis does not know: the server went back, or lost an
   * announcement.
   */
  private def unknownOf(what: String, rows: Seq[Row]): Seq[String] = {
    val folder = BlockFileName.folderOf(id)
    val known = rows.map(_.file).toSet
    FileBlocks.storeOf(what, folders, id.gen).list(folder).getOrElse(Nil).map(name =>
      s"$folder/$name")
      .filter(file => Place.isFileName(file) && !Place.isCopyName(file) && !known(file))
  }

  private def condemn(what: String, file: String): Boolean =
    script(what, Script.Condemn, file, AnnouncedMaxMs.toString) match {
      case Seq("OK") =>
        log.info("{}: {} is condemned, since it has no segment", what: Any, file: Any)
        true
      case Seq("USED" | "YOUNG" | "CONDEMNED" | "EMPTY") => false
      case reply => throw Refusal.of(what, reply, 0, id)
    }

  /**
   * Deletes files, oldest first. A server that is behind Spark's log was restored, failed over, or
   * is somebody's copy: it does not know which files are needed. A file that a place names stays,
   * whatever its row says.
   */
  private def delete(what: String, policy: FilePolicy, due: Seq[Row]): Seq[Row] =
    policy.checks.newestBatch() match {
      case Left(why) =>
        log.info("{}: nothing is deleted: {}", what: Any, why: Any)
        Nil
      case Right(newest) =>
        val manifest = calls.manifest(what)
        if (openedIn(manifest) < newest) {
          log.warn(
            "{}: nothing is deleted: Redis is behind batch {} of Spark's commit log",
            what,
            newest)
          Nil
        } else {
          val named = filesIn(manifest)
          val (kept, free) = due.sortBy(_.changedMs).partition(row => named(row.file))
          kept.foreach { row =>
            log.warn(
              "{}: {} stays: it is condemned, and a segment is in it",
              what: Any,
              row.file: Any)
          }
          val planned = free.take(FilesMax)
          val copied =
            if (planned.isEmpty) Set.empty[String] else policy.checks.copied(planned.map(_.file))
          planned.filterNot(row => copied(row.file)).filter(discard(what, _))
        }
    }

  private def discard(what: String, row: Row): Boolean = {
    FileBlocks.storeOf(what, folders, id.gen).delete(row.file)
    log.info("{}: deleted {}, which nothing has needed for the grace", what: Any, row.file: Any)
    script(what, Script.Discard, row.file) == Seq("OK")
  }

  private def rowsOf(what: String): Seq[Row] =
    calls.fields(what, calls.files).iterator.collect {
      case (file, RowText(state, ms, segments, bytes)) if Place.isFileName(file) =>
        Row(file, state, ms.toLong, segments.toLong, bytes.toLong)
    }.toSeq

  private def openedIn(manifest: Map[String, String]): Long =
    manifest.get("o").flatMap(_.toLongOption).getOrElse(-1)

  private def script(what: String, script: Script, args: String*): Seq[String] =
    words(calls.fileScript(what, script, args))
}

private object FileUpkeep {
  private val log = LoggerFactory.getLogger(classOf[FileUpkeep])
  private val Announced = "n"
  private val Condemned = "d"

  /** Time after which an announced file without a segment is given up. */
  private val AnnouncedMaxMs = 24L * 3600 * 1000
  private val FilesMax = 16

  /** Returns the files that have a segment. */
  def filesIn(manifest: Map[String, String]): Set[String] = manifest.collect {
    case (field, InFile(file)) if field.startsWith(ManifestFields.PlacePrefix) => file
  }.toSet

  /** Matches a place in any file, however the rest of it looks. */
  private val InFile = "f ([^ ]+) .*".r
  private val RowText = "([a-z]) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})".r

  private final case class Row(
      file: String,
      state: String,
      changedMs: Long,
      segments: Long,
      bytes: Long) {
    def ageMs(nowMs: Long): Long = nowMs - changedMs
  }
}
