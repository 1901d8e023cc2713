package org.apache.spark.sql.redisstate.copies

import java.io.{BufferedOutputStream, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.MessageDigest
import java.util.{Arrays, HexFormat, UUID}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.redisstate.checkpoint.CopyNames

import org.redisstate.core.copy.{CopiedSegment, CopyFile, CopyPart}
import org.redisstate.core.errors.UnavailableException

/**
 * Copies of a query's state in its checkpoint (docs/format.md, section 11). A copy has a folder of
 * its own, and is complete when its manifest exists, which is written last. Copies share the files
 * that their segments are in.
 */
private[redisstate] final class StateCopies(checkpoint: Path, hadoopConf: Configuration)
    extends Logging {
  import StateCopies._

  private val folder = new Path(new Path(checkpoint, "state"), CopyNames.Folder)
  private val files = CheckpointFileManager.create(folder, hadoopConf)

  /**
   * Returns the id of a batch's timeline: the hash of Spark's entry, which contains its time. None
   * if the entry is gone.
   */
  def offsetsOf(batch: Long): Option[String] = {
    val entry = new Path(new Path(checkpoint, "offsets"), batch.toString)
    if (files.exists(entry)) Some(hex(sha256.digest(bytesOf(entry)))) else None
  }

  /** Returns whether a complete copy of a version on this timeline exists. */
  def has(version: Long, offsets: String): Boolean =
    complete(listed().filter(_.getName.startsWith(s"$version-"))).exists(
      _.manifest.offsets == offsets)

  /** Returns whether a complete copy of any version exists. */
  def hasAny: Boolean = listed().exists(place => files.exists(new Path(place, CopyNames.Manifest)))

  /** Returns the manifests of all complete copies. */
  def manifests(): Seq[CopyManifest] = complete(listed()).map(_.manifest)

  /**
   * Writes the manifest of a copy whose segments are in files. Those files stay if it fails: the
   * manifest may be there, and another copy may name what it names.
   *
   * @param own files that the caller has written
   * @param since returns since when no copy names each file that the new one does not, given the
   * manifests of all others
   * @param mayRemove whether a copy that failed may be removed now
   * @return the folder of the copy
   * @throws UnavailableException if a file is none that a copy still names
   */
  def write(
      head: CopyHead,
      parts: Seq[(CopyPart, Seq[CopiedSegment])],
      own: Set[CopyFile],
      since: Seq[CopyManifest] => Map[CopyFile, Long],
      mayRemove: () => Boolean): Path = {
    val attempt = UUID.randomUUID().toString.replace("-", "")
    val place = new Path(folder, s"${head.version}-$attempt")
    try {
      files.mkdirs(place)
      // Another driver may have removed copies meanwhile, and deletes their files an hour later.
      val others = manifests()
      val held = own ++ others.flatMap(_.files)
      val named =
        parts.flatMap(_._2).flatMap(_.place).map(p => CopyFile(head.gen, p.file)).toSet
      named.find(!held(_)).foreach { file =>
        throw new UnavailableException(
          s"copy version ${head.version} of $checkpoint: ${file.name} was in a copy that is gone. The copy is made later.")
      }
      val unneeded = since(others) -- named
      val manifest = CopyManifest.text(head, parts, unneeded).getBytes(UTF_8)
      store(new Path(place, CopyNames.Manifest)) { out =>
        out.write(digestLine(manifest))
        out.write(manifest)
      }
      place
    } catch {
      case e: Throwable =>
        if (mayRemove()) delete(place)
        throw e
    }
  }

  /**
   * Removes all but the two newest complete copies of this timeline. The others are useless: older
   * copies, copies of an abandoned timeline, and unfinished ones. If the caller's own copy is not
   * one of the two, nothing is removed, since the two do not record that an older copy named its
   * files until now.
   *
   * @param own folder of the caller's newest copy
   * @return the remaining copies; none if nothing was removed
   */
  def tidy(own: Path): Seq[CopyManifest] = {
    val all = listed()
    val kept = complete(all)
      .filter(one => offsetsOf(one.manifest.version - 1).contains(one.manifest.offsets))
      .sortBy(-_.manifest.version)
      .distinctBy(_.manifest.version)
      .take(Kept)
    if (!kept.exists(_.place.getName == own.getName)) Nil
    else {
      all.filterNot(kept.map(_.place).toSet).foreach(delete)
      kept.map(_.manifest)
    }
  }

  private def listed(): Seq[Path] =
    if (!files.exists(folder)) Nil
    else files.list(folder).toSeq.filter(_.isDirectory).map(_.getPath).filter(path =>
      Name.matches(path.getName))

  private def complete(places: Seq[Path]): Seq[CompleteCopy] = for {
    place <- places
    file = new Path(place, CopyNames.Manifest)
    if files.exists(file)
    manifest <- parsed(bytesOf(file))
  } yield CompleteCopy(place, manifest)

  /** Parses a manifest; None for a damaged one, whose places may be wrong. */
  private def parsed(raw: Array[Byte]): Option[CopyManifest] = {
    val (line, text) = raw.splitAt(DigestLine)
    if (Arrays.equals(line, digestLine(text))) CopyManifest.parsed(new String(text, UTF_8))
    else None
  }

  private def store(file: Path)(write: OutputStream => Unit): Unit = {
    val out = files.createAtomic(file, overwriteIfPossible = false)
    try {
      val buffered = new BufferedOutputStream(out, BufferBytes)
      write(buffered)
      buffered.flush()
      out.close()
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
  private val DigestLine = 65

  private final case class CompleteCopy(place: Path, manifest: CopyManifest)

  private def sha256: MessageDigest = MessageDigest.getInstance("SHA-256")

  private def digestLine(text: Array[Byte]): Array[Byte] =
    s"${hex(sha256.digest(text))}\n".getBytes(UTF_8)

  private def hex(digest: Array[Byte]): String = HexFormat.of.formatHex(digest)
}
