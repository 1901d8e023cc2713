package org.apache.spark.sql.redisstate.copies

import java.io.{BufferedOutputStream, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.{DigestOutputStream, MessageDigest}
import java.util.{HexFormat, UUID}

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.redisstate.checkpoint.CopyNames

import org.redisstate.core.copy.{CopyPart, CopySource}

/** Manifest of a complete copy: its version and its timeline. */
private[redisstate] final case class CopyHead(
    gen: String,
    version: Long,
    runId: String,
    offsets: String,
    query: Map[String, String])

/**
 * Copies of a query's state in its checkpoint (docs/format.md, section 11). A copy has a folder of
 * its own, and is complete when its manifest exists, which is written last.
 */
private[redisstate] final class StateCopies(checkpoint: Path, hadoopConf: Configuration)
    extends Logging {
  import StateCopies._

  private val folder = new Path(new Path(checkpoint, "state"), CopyNames.Folder)
  private val files = CheckpointFileManager.create(folder, hadoopConf)

  /**
   * Returns the id of a batch's timeline: Spark writes its time into the entry. None if the entry
   * is gone.
   */
  def offsetsOf(batch: Long): Option[String] = {
    val entry = new Path(new Path(checkpoint, "offsets"), batch.toString)
    if (files.exists(entry)) Some(hex(sha256.digest(bytesOf(entry)))) else None
  }

  /** Returns whether a complete copy of a version on this timeline exists. */
  def has(version: Long, offsets: String): Boolean =
    complete(listed()).exists(one => one.version == version && one.offsets == offsets)

  /** Returns whether a complete copy of any version exists. */
  def hasAny: Boolean = complete(listed()).nonEmpty

  /** Makes a copy; removes the files of one that fails. */
  def write(head: CopyHead, source: CopySource, parts: Seq[CopyPart]): Unit = {
    val attempt = UUID.randomUUID().toString.replace("-", "")
    val place = new Path(folder, s"${head.version}-$attempt")
    try {
      files.mkdirs(place)
      val stored = parts.map { part =>
        val (bytes, digest) = store(new Path(place, part.name))(source.write(part, _))
        ("operator" -> part.id.operator) ~ ("partition" -> part.id.partition) ~
          ("store" -> part.id.storeName) ~ ("bytes" -> bytes) ~ ("sha256" -> digest)
      }
      val manifest = compact(render(
        ("format" -> 1) ~ ("gen" -> head.gen) ~ ("version" -> head.version) ~
          ("run" -> head.runId) ~ ("created" -> System.currentTimeMillis()) ~
          ("offsets" -> head.offsets) ~ ("query" -> head.query) ~ ("parts" -> stored))).getBytes(
        UTF_8)
      store(new Path(place, CopyNames.Manifest)) { out =>
        out.write(s"${hex(sha256.digest(manifest))}\n".getBytes(UTF_8))
        out.write(manifest)
      }
    } catch {
      case e: Throwable =>
        delete(place)
        throw e
    }
  }

  /**
   * Leaves the two newest complete copies of this timeline. All others can serve nobody: older ones, those of a timeline that the
   * query went back from, and what was never finished.
   */
  def tidy(): Unit = {
    val all = listed()
    val kept = complete(all)
      .filter(one => offsetsOf(one.version - 1).contains(one.offsets))
      .sortBy(-_.version)
      .distinctBy(_.version)
      .take(Kept)
      .map(_.place)
      .toSet
    all.filterNot(kept).foreach(delete)
  }

  private def listed(): Seq[Path] =
    if (!files.exists(folder)) Nil
    else files.list(folder).toSeq.filter(_.isDirectory).map(_.getPath).filter(path =>
      Name.matches(path.getName))

  private def complete(places: Seq[Path]): Seq[CompleteCopy] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    for {
      place <- places
      manifest = new Path(place, CopyNames.Manifest)
      if files.exists(manifest)
      json <- Try(parse(new String(bytesOf(manifest), UTF_8).dropWhile(_ != '\n')): JValue).toOption
      version <- (json \ "version").extractOpt[Long]
      offsets <- (json \ "offsets").extractOpt[String]
    } yield CompleteCopy(place, version, offsets)
  }

  /** @return how many bytes were written, and their SHA-256 */
  private def store(file: Path)(write: OutputStream => Unit): (Long, String) = {
    val out = files.createAtomic(file, overwriteIfPossible = false)
    try {
      val digest = new DigestOutputStream(out, sha256)
      val buffered = new BufferedOutputStream(digest, BufferBytes)
      write(buffered)
      buffered.flush()
      val bytes = out.getPos
      out.close()
      (bytes, hex(digest.getMessageDigest.digest()))
    } catch {
      case e: Throwable =>
        out.cancel()
        throw e
    }
  }

  private def bytesOf(file: Path): Array[Byte] = {
    val in = files.open(file)
    try in.readAllBytes()
    finally in.close()
  }

  private def delete(place: Path): Unit =
    try files.delete(place)
    catch {
      case NonFatal(e) => logWarning(s"The copy in $place stays until the next one is made", e)
    }
}

private[redisstate] object StateCopies {
  private val Name = "[0-9]+-[0-9a-f]{32}".r
  private val Kept = 2
  private val BufferBytes = 1 << 16

  private final case class CompleteCopy(place: Path, version: Long, offsets: String)

  private def sha256: MessageDigest = MessageDigest.getInstance("SHA-256")

  private def hex(digest: Array[Byte]): String = HexFormat.of.formatHex(digest)
}
