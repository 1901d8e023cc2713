package org.apache.spark.sql.redisstate

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

import org.redisstate.core.errors.{
  CheckpointMovedException,
  FormatException,
  MarkerMissingException
}
import org.redisstate.core.ids.Keys

/** Who a checkpoint is: the file `_redis_state` in its state folder (docs/format.md, section 9). */
private[redisstate] final case class Marker(gen: String, pathHash: String)

/** @param stateRoot the checkpoint's state folder, as Spark names it in a store's id */
private[redisstate] final class MarkerFile(stateRoot: String, hadoopConf: Configuration) {
  private val root = new Path(stateRoot)
  private val file = new Path(root, MarkerFile.Name)

  /** SHA-256 of the qualified path: the same for every spelling of it. */
  val pathHash: String = Keys.sha256(root.getFileSystem(hadoopConf).makeQualified(root).toString)

  /**
   * The marker of this checkpoint, made by the first run at version 0.
   *
   * @param runId of the query, for a marker that is missing
   * @param version that was asked for
   */
  def resolve(runId: String, version: Long, adoptMoved: Boolean): Marker = read() match {
    case Some(marker) if marker.pathHash == pathHash => marker
    case Some(marker) if adoptMoved =>
      val adopted = marker.copy(pathHash = pathHash)
      write(adopted)
      adopted
    case Some(_) =>
      throw new CheckpointMovedException(
        s"open the state in $stateRoot: the checkpoint was made under another path, so it was " +
          "moved or copied. If it was moved, set onPathChange=adopt once. A copy cannot run beside its original: " +
          "start a new checkpoint for it.")
    case None if version > 0 =>
      throw new MarkerMissingException(
        s"open version $version of the state in $stateRoot: the marker file ${MarkerFile.Name} " +
          "is missing. Either the checkpoint was never kept in Redis (Spark pins the provider in its offset log; " +
          "start a new checkpoint), or the file was deleted: restore it from a backup.")
    case None => Marker(runId.replace("-", ""), pathHash)
  }

  def read(): Option[Marker] = {
    val manager = CheckpointFileManager.create(root, hadoopConf)
    if (!manager.exists(file)) None
    else {
      val in = manager.open(file)
      try Some(MarkerFile.decode(new String(in.readAllBytes(), UTF_8), file))
      finally in.close()
    }
  }

  /** All executors of a run write the same bytes, so it does not matter who is last. */
  def write(marker: Marker): Unit = {
    val manager = CheckpointFileManager.create(root, hadoopConf)
    if (!manager.exists(root)) manager.mkdirs(root)
    val out = manager.createAtomic(file, overwriteIfPossible = true)
    try {
      out.write(MarkerFile.encode(marker).getBytes(UTF_8))
      out.close()
    } catch {
      case e: Throwable =>
        out.cancel()
        throw e
    }
  }
}

private[redisstate] object MarkerFile {
  val Name = "_redis_state"
  private val Temporary = "temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".r

  /** Whether Spark made the checkpoint's folder by itself, for a query that was given none; it deletes it again. */
  def isTemporary(stateRoot: String): Boolean = {
    val root = new Path(stateRoot)
    Option(root.toUri.getScheme).forall(_ == "file") &&
    Option(root.getParent).exists(checkpoint => Temporary.matches(checkpoint.getName))
  }

  private def encode(marker: Marker): String =
    compact(render(("format" -> 1) ~ ("gen" -> marker.gen) ~ ("path" -> marker.pathHash)))

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
        "Restore it from a backup, or use the release that wrote it."))
  }
}
