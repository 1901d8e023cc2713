package org.apache.spark.sql.redisstate.checkpoint

import java.io.FileNotFoundException
import java.util.concurrent.TimeUnit

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.places.{FilesField, SegmentFolders}

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.protocol.{DeletionChecks, FilePolicy, PartitionClient}

/**
 * Maintenance of a partition's history in files: moves what has become history, and looks after
 * files that nothing needs any more. For Spark's maintenance, never for a task. What the checkpoint
 * records counts, since `redis-state places --bring-back` changes it while the query runs.
 *
 * @param recorded reads what the checkpoint records of its files; None also while the server of its
 * registry is silent
 * @param share of the partition by `redisMemory`
 */
private[redisstate] final class HistoryUpkeep(
    client: PartitionClient,
    conf: RedisStateConf,
    checks: DeletionChecks,
    recorded: () => Option[FilesField],
    share: () => Long = () => 0,
    nowNs: () => Long = () => System.nanoTime())
    extends Logging {
  import HistoryUpkeep._

  private val moving, keeping = new Tries(nowNs)
  private var filesAtNs = nowNs()
  private var sweepAtNs = nowNs()
  private var reported = 0

  /** A pass of bounded work; called again by the next maintenance. */
  def run(): Unit = synchronized {
    val moves = conf.movesHistory && moving.isDue
    val keeps = conf.redisMemory.nonEmpty && keeping.isDue
    if (moves || keeps || isDue(filesAtNs)) {
      recorded().foreach { field =>
        if (moves && field.moves) attempt(moving)(moveHistory())
        // Commits wait where there is no room, whatever becomes of the history.
        if (keeps) attempt(keeping)(keepRoom())
        if (isDue(filesAtNs)) client.whileAnswering(lookAfterFiles(field)): Unit
      }
    }
  }

  private def isDue(atNs: Long): Boolean = nowNs() - atNs >= 0

  /** A file that could not be written has a row in Redis all the same: it is tried less often then. */
  private def attempt(tries: Tries)(step: => Unit): Unit =
    try if (client.whileAnswering(step)) tries.worked()
    catch {
      case e: RedisStateException =>
        tries.failed()
        logWarning(
          s"Segments of ${client.id} stay in Redis for now; a later maintenance tries again: ${e.getMessage}")
    }

  private def moveHistory(): Unit = {
    val began = nowNs()
    val moved = client.files.moveHistory()
    if (moved.segments > 0)
      logInfo(
        s"Moved ${moved.segments} segments (${moved.bytes} bytes) of ${client.id} into a file in " +
          s"${(nowNs() - began) / 1000000L} ms")
  }

  /** Keeps a sixth of the share free, so that commits seldom wait for a file. */
  private def keepRoom(): Unit = {
    val moved = client.files.keepRoom(share())
    if (moved > 0) logInfo(s"Moved $moved segments of ${client.id} into a file to keep room")
  }

  private def lookAfterFiles(field: FilesField): Unit = {
    filesAtNs = nowNs() + FilesEveryNs
    val sweeps = conf.needsFiles && isDue(sweepAtNs)
    if (sweeps) sweepAtNs = nowNs() + SweepEveryNs
    val policy = FilePolicy(math.max(GraceMinMs, field.graceMs), field.deletes, checks)
    val report = client.files.lookAfter(policy, sweeps)
    if (report.deleted > 0) logInfo(s"Deleted ${report.deleted} files of ${client.id}")
    if (report.unknown > 0)
      logInfo(
        s"Redis does not know ${report.unknown} files of ${client.id} in their folder. $Shared")
    if (report.due > 0 && (sweeps || report.due != reported)) {
      val why =
        if (!checks.ownsFolder) Shared
        else if (field.deletes) "They are deleted by a later maintenance."
        else
          s"They stay until the query starts with ${RedisStateConf.Prefix}history=files and placesDelete=true."
      logInfo(
        s"${report.due} files of ${client.id} (${report.bytes} bytes) were not needed for the grace. $why")
    }
    reported = report.due
  }
}

private[redisstate] object HistoryUpkeep {
  private val PauseNs = TimeUnit.MINUTES.toNanos(1)
  private val PauseMaxNs = TimeUnit.HOURS.toNanos(1)
  private val DoublingsMax = 6
  private val GraceMinMs = TimeUnit.HOURS.toMillis(1)
  private val Shared =
    "They stay: the folder does not lie in the checkpoint, so another server may need them. If this Redis is the only one " +
      "with this checkpoint, `redis-state places QUERY --sweep --checkpoint FOLDER --exclusive` condemns and deletes them."
  private val FilesEveryNs = TimeUnit.MINUTES.toNanos(10)
  private val SweepEveryNs = TimeUnit.DAYS.toNanos(1)

  /** Tries of one step, which get rarer while it fails. */
  private final class Tries(nowNs: () => Long) {
    private var failures = 0
    private var atNs = nowNs()

    def isDue: Boolean = nowNs() - atNs >= 0
    def worked(): Unit = failures = 0
    def failed(): Unit = {
      atNs = nowNs() + math.min(PauseMaxNs, PauseNs << math.min(failures, DoublingsMax))
      failures += 1
    }
  }
}

/**
 * Checks in a checkpoint's folder before a block file is deleted: a server that does not belong to
 * the folder, or is behind it, deletes nothing.
 *
 * @param stateRoot the checkpoint's state folder, as Spark names it in a store's id
 * @param folders of the checkpoint's files
 */
private[redisstate] final class FolderChecks(
    stateRoot: String,
    hadoopConf: Configuration,
    gen: String,
    folders: SegmentFolders)
    extends DeletionChecks {
  private val root = new Path(stateRoot)

  override def ownsFolder: Boolean = folders.isInCheckpoint

  override def newestBatch(): Either[String, Long] = {
    val file = new MarkerFile(stateRoot, hadoopConf)
    file.read() match {
      case None => Left(s"$stateRoot has no marker file")
      case Some(marker) if marker.gen != gen =>
        Left(s"$stateRoot belongs to checkpoint ${marker.gen}")
      case Some(marker) if marker.pathHash != file.pathHash =>
        Left(s"$stateRoot was moved or copied")
      case Some(_) =>
        QueryLogs.batches(root.getParent, QueryLogs.Commits, hadoopConf).maxOption
          .toRight(s"the checkpoint of $stateRoot has no commit log")
    }
  }

  override def copied(files: Seq[String]): Set[String] = {
    val copies =
      try root.getFileSystem(hadoopConf).listStatus(new Path(root, CopyNames.Folder)).toSeq
      catch { case _: FileNotFoundException => Nil }
    copies.flatMap { copy =>
      val manifest = TextFile.read(new Path(copy.getPath, CopyNames.Manifest), hadoopConf)
      files.filter(file => manifest.exists(_.contains(file)))
    }.toSet
  }
}
