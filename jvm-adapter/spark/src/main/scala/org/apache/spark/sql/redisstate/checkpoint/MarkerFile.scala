package org.apache.spark.sql.redisstate.checkpoint

import java.nio.charset.StandardCharsets.UTF_8

import scala.annotation.tailrec
import scala.util.{Failure, Success, Try}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.backend.Clock
import org.redisstate.core.errors.{
  CheckpointMovedException,
  ConfigException,
  FormatException,
  MarkerMissingException,
  UnavailableException
}
import org.redisstate.core.ids.Sha256

/**
 * A change of the number of partitions in place.
 *
 * @param batch the first one that has it; its entry in the offset log says whether it came to that
 */
private[redisstate] final case class Rescaled(batch: Long, partitions: Int)

/**
 * Identity of a checkpoint: the file `_redis_state` in its state folder (docs/format.md, section
 * 9).
 *
 * @param rescaled of a gen that has the state in another number of partitions than the one before
 */
private[redisstate] final case class Marker(
    gen: String,
    pathHash: String,
    rescaled: Option[Rescaled] = None)

/**
 * A planned change of the number of partitions.
 *
 * @param before the gen that counted until then
 */
private[redisstate] final case class PartitionsChange(before: String, now: Marker)

/**
 * Marker files of a checkpoint. None is ever changed: each adoption or rescaling adds a further
 * file.
 *
 * @param stateRoot the checkpoint's state folder, as Spark names it in a store's id
 */
private[redisstate] final class MarkerFile(
    stateRoot: String,
    hadoopConf: Configuration,
    clock: Clock = Clock.System) {
  import MarkerFile._

  private val root = new Path(stateRoot)
  private val fs = root.getFileSystem(hadoopConf)

  /** SHA-256 of the qualified path: the same for every spelling of it. */
  val pathHash: String = Sha256.of(fs.makeQualified(root).toString)

  /** Returns the marker as the files are at this moment. */
  def read(): Option[Marker] = {
    val all = files
    all.headOption.map { _ =>
      val (decided, announced) = decidedOf(all)
      planned(announced).getOrElse(decided)
    }
  }

  /**
   * Returns the announced and planned change of the number of partitions that is not decided yet.
   */
  def undecided(): Option[PartitionsChange] = {
    val all = files
    if (all.isEmpty) None
    else {
      val (decided, announced) = decidedOf(all)
      planned(announced).map(PartitionsChange(decided.gen, _))
    }
  }

  /**
   * Announces another gen with another number of partitions. It takes effect once the entry of the
   * batch in the offset log names the gen.
   */
  def announce(gen: String, rescaled: Rescaled): Unit = {
    @tailrec def attempt(left: Int): Unit = {
      val all = files
      val (decided, announced) = decidedOf(all)
      if (decided.gen != gen && !announced.exists(_.gen == gen)) {
        if (left == 0 || decided.rescaled.exists(_.batch >= rescaled.batch))
          throw new UnavailableException(
            s"change the number of partitions of $stateRoot: other runs of the query have changed it, or keep writing its marker " +
              "files. Nothing was lost. Start the query again when no other run uses the folder.")
        checkRoom(all)
        file(all.size).create(encode(Marker(gen, pathHash, Some(rescaled))))
        attempt(left - 1)
      }
    }
    attempt(Tries)
  }

  /**
   * Once its batch is committed, a file says that a change came to be: Spark removes old entries of
   * its logs.
   *
   * @param now what a run began with; it holds even if its entry in the offset log is gone by now
   * @return whether there is nothing left to decide
   */
  def decide(now: Marker): Boolean = {
    val isCommitted = QueryLogs.batches(root.getParent, QueryLogs.Commits, hadoopConf).maxOption
      .exists(newest => now.rescaled.forall(_.batch <= newest))
    def isOpen(all: Seq[Marker]) = decidedOf(all)._2.exists(_.gen == now.gen)
    val all = files
    if (isCommitted && isOpen(all)) file(all.size).create(encode(Marker(now.gen, now.pathHash)))
    !isOpen(files)
  }

  /**
   * Returns the marker; waits while it may be missing for a moment only: the cache of a mounted
   * file system may not show it yet, or another process may be writing it.
   *
   * @param expected whether it has to be there
   */
  def find(expected: Boolean): Option[Marker] = {
    val end = clock.nowMs + LookForMs
    @tailrec def look(): Option[Marker] = Try(read()) match {
      case Success(found) if found.isDefined || !expected => found
      case Success(None) if clock.nowMs >= end || !fs.exists(root) => None
      case Failure(e) if clock.nowMs >= end || !e.isInstanceOf[FormatException] => throw e
      case _ =>
        clock.sleep(PauseMs)
        look()
    }
    look()
  }

  /**
   * Returns the marker of a checkpoint whose state may be opened here.
   *
   * @param version that was asked for; only version 0 may have none
   */
  def open(version: Long, adoptMoved: Boolean): Option[Marker] = {
    val found = find(expected = version > 0)
    if (found.isEmpty && version > 0) throw missing(s"open version $version of")
    found.foreach(marker => if (marker.pathHash != pathHash && !adoptMoved) throw moved)
    found
  }

  /** Makes the marker, unless there is one. The result may be another process's marker. */
  def create(marker: Marker): Unit = file(0).create(encode(marker))

  /**
   * Notes the present path of a moved checkpoint, in a file that is made once, like the marker
   * itself.
   */
  def adopt(): Unit = {
    val known = files
    val now = read().getOrElse(throw missing("adopt"))
    if (now.pathHash != pathHash) {
      checkRoom(known)
      file(known.size).create(encode(Marker(now.gen, pathHash)))
      if (!find(expected = true).exists(_.pathHash == pathHash)) throw moved
    }
  }

  def missing(attempted: String): MarkerMissingException = new MarkerMissingException(
    s"$attempted the state in $stateRoot: the marker file $Name does not exist. " +
      "Nothing was changed, and the state in Redis is untouched. If the file was deleted, or the folder was copied " +
      "in part, restore the whole checkpoint folder from a backup. If the checkpoint was made with another " +
      "provider, Spark stays with that provider: start the query with a new checkpointLocation.")

  private def moved: CheckpointMovedException = new CheckpointMovedException(
    s"open the state in $stateRoot: the checkpoint was made under another path, so it was " +
      "moved or copied. Nothing was changed. If it was moved, and nothing uses the old path, start the query once " +
      s"with the option ${RedisStateConf.Prefix}onPathChange=adopt. If it was copied, start the " +
      "query of the copied folder with a new checkpointLocation: two queries cannot share one " +
      "state.")

  /** Returns the marker and its later files, oldest first. */
  private def files: Seq[Marker] =
    Iterator.from(0).map(at).takeWhile(_.isDefined).flatten.toSeq

  /** Returns the marker by the files alone, and the later announcements, newest first. */
  private def decidedOf(all: Seq[Marker]): (Marker, List[Marker]) = {
    all.head.rescaled.foreach(_ => throw otherCheckpoint(all.head, all.head))
    all.tail.foldLeft((all.head, List.empty[Marker])) { case ((decided, announced), file) =>
      file.rescaled match {
        // What comes of that batch was decided before: by another run, which was faster.
        case Some(late) if decided.rescaled.exists(_.batch >= late.batch) => (decided, announced)
        case Some(_) => (decided, file :: announced)
        case None =>
          val named = (decided :: announced).find(_.gen == file.gen)
            .getOrElse(throw otherCheckpoint(all.head, file))
          (named.copy(pathHash = file.pathHash), Nil)
      }
    }
  }

  private def otherCheckpoint(first: Marker, other: Marker) = new FormatException(
    s"the marker file $Name in $stateRoot is of gen ${first.gen}, and a file $Name.<number> in the same folder of gen " +
      s"${other.gen}: they belong to two checkpoints. Delete the files $Name.<number> if the first one is right.")

  /** Returns the announced change that the offset log has. */
  private def planned(announced: List[Marker]): Option[Marker] =
    announced.flatMap(_.rescaled).map(_.batch).distinct.flatMap { batch =>
      val entry = new OnceFile(new Path(root.getParent, s"${QueryLogs.Offsets}/$batch"), hadoopConf)
      entry.read().flatMap(bytes => genIn(new String(bytes, UTF_8), batch)).map { gen =>
        announced.find(_.gen == gen).getOrElse(throw new FormatException(
          s"batch $batch in the offset log beside $stateRoot continues with the gen $gen, which no marker file names. " +
            s"Restore the files $Name.<number> from a backup."))
      }
    }.headOption

  private def genIn(entry: String, batch: Long): Option[String] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    Try(parse(entry.linesIterator.drop(1).next()): JValue).toOption
      .getOrElse(throw new FormatException(
        s"batch $batch in the offset log beside $stateRoot cannot be read. Restore the file from a backup."))
      .\("conf").\(GenConf).extractOpt[String]
  }

  private def checkRoom(known: Seq[Marker]): Unit =
    if (known.size > FilesMax) {
      throw new ConfigException(
        s"write a further marker file into $stateRoot: the checkpoint was moved, or its number of partitions changed, " +
          s"too often ($FilesMax files are the most). Leave it as it is, or start a new checkpoint.")
    }

  private def at(number: Int): Option[Marker] =
    file(number).read().map(bytes => decode(new String(bytes, UTF_8), path(number)))

  private def path(number: Int): Path = new Path(root, if (number == 0) Name else s"$Name.$number")

  private def file(number: Int): OnceFile = new OnceFile(path(number), hadoopConf)
}

private[redisstate] object MarkerFile {
  val Name = "_redis_state"
  private val Temporary = "temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".r
  private val FilesMax = 100
  private val Tries = 5

  /**
   * Conf in the entry of the offset log that begins a gen with another number of partitions; Spark
   * reads only the confs that it knows.
   */
  val GenConf = "redis-state.gen"
  private val LookForMs = 3000L
  private val PauseMs = 100L

  /**
   * Returns whether Spark made the checkpoint's folder by itself, for a query without one; it
   * deletes the folder again.
   */
  def isTemporary(stateRoot: String): Boolean = {
    val root = new Path(stateRoot)
    Option(root.toUri.getScheme).forall(_ == "file") &&
    Option(root.getParent).exists(checkpoint => Temporary.matches(checkpoint.getName))
  }

  private def encode(marker: Marker): Array[Byte] =
    compact(render(
      ("format" -> (if (marker.rescaled.isEmpty) 1 else 2)) ~ ("gen" -> marker.gen) ~
        ("path" -> marker.pathHash) ~ ("batch" -> marker.rescaled.map(_.batch)) ~
        ("partitions" -> marker.rescaled.map(_.partitions)))).getBytes(UTF_8)

  private def decode(text: String, file: Path): Marker = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val marker = for {
      json <- Try(parse(text): JValue).toOption
      format <- (json \ "format").extractOpt[Int]
      rescaled <- format match {
        case 1 => Some(None)
        case 2 =>
          for {
            batch <- (json \ "batch").extractOpt[Long]
            partitions <- (json \ "partitions").extractOpt[Int]
          } yield Some(Rescaled(batch, partitions))
        case _ => None
      }
      gen <- (json \ "gen").extractOpt[String]
      if gen.matches("[0-9a-f]{32}")
      path <- (json \ "path").extractOpt[String]
    } yield Marker(gen, path, rescaled)
    marker.getOrElse(
      throw new FormatException(s"the marker file $file cannot be read by this release. " +
        "Restore it from a backup, or use the release of redis-state that wrote it."))
  }
}
