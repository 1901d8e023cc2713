package org.apache.spark.sql.redisstate

import java.nio.charset.StandardCharsets.UTF_8

import scala.annotation.tailrec
import scala.util.{Failure, Success, Try}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.redisstate.core.backend.Clock
import org.redisstate.core.errors.{
  CheckpointMovedException,
  ConfigException,
  FormatException,
  MarkerMissingException
}
import org.redisstate.core.ids.Sha256

/**
 * The identity of a checkpoint: the file `_redis_state` in its state folder (docs/format.md,
 * section 9).
 */
private[redisstate] final case class Marker(gen: String, pathHash: String)

/**
 * No file of these is ever changed: one that was adopted has a further file for each time.
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

  /** What is there at this moment. */
  def read(): Option[Marker] = markers.lastOption

  /**
   * The marker, looked for as long as it may be missing for a moment only: a cache of a mounted file system may not show it yet, and
   * what writes it may be at it.
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
   * The marker of a checkpoint whose state may be opened here.
   *
   * @param version that was asked for; only version 0 may have none
   */
  def open(version: Long, adoptMoved: Boolean): Option[Marker] = {
    val found = find(expected = version > 0)
    if (found.isEmpty && version > 0) throw missing(s"open version $version of")
    found.foreach(marker => if (marker.pathHash != pathHash && !adoptMoved) throw moved)
    found
  }

  /** Makes it, unless there is one. What is there then may be another one's. */
  def create(marker: Marker): Unit = file(0).create(encode(marker))

  /** The checkpoint was moved to where it is found now: a file says so that is made once, like the marker itself. */
  def adopt(): Unit = {
    val known = markers
    if (known.isEmpty) throw missing("adopt")
    if (known.last.pathHash != pathHash) {
      if (known.size > AdoptionsMax) {
        throw new ConfigException(
          s"adopt the checkpoint of $stateRoot: it was moved $AdoptionsMax times, and no more are " +
            "kept. Leave it where it was, or start a new checkpoint.")
      }
      file(known.size).create(encode(Marker(known.last.gen, pathHash)))
      if (!find(expected = true).exists(_.pathHash == pathHash)) throw moved
    }
  }

  def missing(attempted: String): MarkerMissingException = new MarkerMissingException(
    s"$attempted the state in $stateRoot: the marker file $Name does not exist. " +
      "Nothing was changed, and the state in Redis is untouched. If the file was deleted, or the folder was copied " +
      "in part, bring the whole checkpoint folder back from a backup. If the checkpoint was made with another " +
      "provider, Spark keeps to that: start the query with a new checkpointLocation.")

  private def moved: CheckpointMovedException = new CheckpointMovedException(
    s"open the state in $stateRoot: the checkpoint was made under another path, so it was " +
      "moved or copied. Nothing was changed. If it was moved, and nothing uses the old path, start the query once " +
      s"with the option ${RedisStateConf.Prefix}onPathChange=adopt. If it was copied, start the " +
      "query of the copied folder with a new checkpointLocation: two queries cannot share one " +
      "state.")

  /** The marker and its adoptions, oldest first. */
  private def markers: Seq[Marker] = {
    val all = Iterator.from(0).map(at).takeWhile(_.isDefined).flatten.toSeq
    all.find(_.gen != all.head.gen).foreach(other =>
      throw new FormatException(
        s"the marker file $Name in $stateRoot is of gen ${all.head.gen}, and the file " +
          s"$Name.${all.indexOf(other)} beside it of gen ${other.gen}: they belong to two " +
          s"checkpoints. Delete the files $Name.<number> if the first one is right."))
    all
  }

  private def at(number: Int): Option[Marker] =
    file(number).read().map(bytes => decode(new String(bytes, UTF_8), path(number)))

  private def path(number: Int): Path = new Path(root, if (number == 0) Name else s"$Name.$number")

  private def file(number: Int): OnceFile = new OnceFile(path(number), hadoopConf)
}

private[redisstate] object MarkerFile {
  val Name = "_redis_state"
  private val Temporary = "temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".r
  private val AdoptionsMax = 100
  private val LookForMs = 3000L
  private val PauseMs = 100L

  /** Whether Spark made the checkpoint's folder by itself, for a query that was given none; it deletes it again. */
  def isTemporary(stateRoot: String): Boolean = {
    val root = new Path(stateRoot)
    Option(root.toUri.getScheme).forall(_ == "file") &&
    Option(root.getParent).exists(checkpoint => Temporary.matches(checkpoint.getName))
  }

  private def encode(marker: Marker): Array[Byte] =
    compact(
      render(("format" -> 1) ~ ("gen" -> marker.gen) ~ ("path" -> marker.pathHash))).getBytes(UTF_8)

  private def decode(text: String, file: Path): Marker = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val marker = for {
      json <- Try(parse(text): JValue).toOption
      if (json \ "format").extractOpt[Int].contains(1)
      gen <- (json \ "gen").extractOpt[String]
      if gen.matches("[0-9a-f]{32}")
      path <- (json \ "path").extractOpt[String]
    } yield Marker(gen, path)
    marker.getOrElse(
      throw new FormatException(s"the marker file $file cannot be read by this release. " +
        "Restore it from a backup, or use the release of redis-state that wrote it."))
  }
}
