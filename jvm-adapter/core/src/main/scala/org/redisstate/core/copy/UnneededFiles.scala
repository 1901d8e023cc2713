package org.redisstate.core.copy

import java.nio.charset.StandardCharsets.UTF_8

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.Place
import org.redisstate.core.ids.Keys
import org.redisstate.core.places.FileStore

/**
 * A file of copies.
 *
 * @param gen of the checkpoint that it belongs to
 * @param name below the folder of that checkpoint's files
 */
final case class CopyFile(gen: String, name: String) {

  /** Folder of the partition whose segments the file has. */
  def partition: String = name.takeWhile(_ != '/')
}

/**
 * Deletes files that no copy names any more (docs/format.md, section 11). A file from which a
 * restored partition may read stays.
 *
 * @param filesOf files of a checkpoint, in the folder of this one
 * @param graceMs time for which a file stays after a restored partition stopped reading it
 */
final class UnneededFiles(
    backend: RedisBackend,
    prefix: String,
    filesOf: String => FileStore,
    graceMs: Long) {
  import UnneededFiles._

  /**
   * Deletes files, and returns those that do not exist any more. Skips names that no file of a copy
   * can have, and a file that cannot be deleted; after several failures it stops.
   */
  def delete(files: Seq[CopyFile]): Seq[CopyFile] = {
    var failures = 0
    files.filter(isCopy).groupBy(file => file.gen -> file.partition).toSeq.flatMap {
      case ((gen, of), all) =>
        val keys = Keys.metaAndFiles(prefix, gen, of)
        val (rows, now) = rowsOf(keys, all)
        // Checked last, to see a restore that came meanwhile.
        val named = namedBy(keys.head)
        all.zip(rows).filter { case (file, row) => !named(file.name) && isFree(row, now) }.flatMap {
          case (file, row) if failures < FailuresMax =>
            try {
              filesOf(gen).delete(file.name)
              if (row.nonEmpty)
                backend.script(What, Script.Discard, keys, Seq(Command.bytes(file.name)))
              log.info("{}: deleted {} of checkpoint {}", What, file.name, gen)
              Some(file)
            } catch {
              case e: RedisStateException =>
                failures += 1
                log.warn(s"$What: ${file.name} of checkpoint $gen stays for now", e)
                None
            }
          case _ => None
        }
    }
  }

  private def rowsOf(keys: Seq[String], files: Seq[CopyFile]): (Seq[Option[String]], Long) =
    backend.call(
      What,
      Seq(Command("HMGET", keys(1) +: files.map(_.name): _*), Command("TIME"))) match {
      case Seq(rows: Seq[_], time: Seq[_]) =>
        (rows.map(Option(_).map(text)), text(time.head).toLong * 1000)
      case _ => (files.map(_ => Some("")), 0)
    }

  /** Returns the files that hold a segment of the partition. */
  private def namedBy(meta: String): Set[String] =
    backend.call(What, Seq(Command("HGETALL", meta))).head match {
      case all: Seq[_] => all.map(text).collect { case InFile(file) => file }.toSet
      case _ => Set.empty
    }

  /** Returns whether no partition reads the file: a used file has a row, others may have none. */
  private def isFree(row: Option[String], nowMs: Long): Boolean = row match {
    case None => true
    case Some(Condemned(ms)) => nowMs - ms.toLong >= graceMs
    case Some(_) => false
  }

  private def text(value: Any): String = value match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case other => String.valueOf(other)
  }
}

object UnneededFiles {
  private val log = LoggerFactory.getLogger(classOf[UnneededFiles])
  private val What = "delete files of copies"

  /** Failures after which no more files are tried: the file system may not answer at all. */
  private val FailuresMax = 8
  private val Gen = "[0-9a-f]{32}".r
  private val InFile = "f ([^ ]+) .*".r
  private val Condemned = "d ([0-9]{1,18}) .*".r

  /**
   * Returns whether a name is that of a copy file: others may write manifests, whose paths must not
   * leave the folder.
   */
  private def isCopy(file: CopyFile): Boolean =
    Gen.matches(file.gen) && Place.isCopyName(file.name)

  /** Returns the files of copies that a listing shows, of some partitions. */
  def listed(gen: String, files: FileStore, partitions: Seq[String]): Seq[CopyFile] =
    partitions.distinct.flatMap { of =>
      files.list(of).getOrElse(Nil).map(name => s"$of/$name").filter(Place.isCopyName).map(
        CopyFile(gen, _))
    }
}
