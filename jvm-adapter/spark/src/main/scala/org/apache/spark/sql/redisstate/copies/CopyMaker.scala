package org.apache.spark.sql.redisstate.copies

import java.util.concurrent.TimeUnit

import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.redisstate.places.HadoopFiles

import org.redisstate.core.copy._
import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.{BlockSigner, Place}
import org.redisstate.core.places.{BlockFileName, FileStore}

/**
 * Makes copies of a checkpoint. Copies share the files of their segments; files that no copy names
 * any more are deleted (docs/format.md, section 11). For one thread.
 *
 * @param pause waits for ms
 */
private[copies] final class CopyMaker(
    gen: String,
    checkpoint: Path,
    hadoopConf: Configuration,
    nowMs: () => Long,
    pause: Long => Unit) {
  import CopyMaker._

  private val folder = new Path(new Path(checkpoint, "state"), BlockFileName.Folder)
  private val copies = new StateCopies(checkpoint, hadoopConf)

  /** Places of segments that were written for a failed copy, and the time of the last write. */
  private var written = Map.empty[CopiedName, Place.InFile]
  private var writtenMs = 0L
  private var deleted = Set.empty[CopyFile]
  private var surveyMs = Option.empty[Long]

  /** Time at which this maker began its newest manifest, and its folder. */
  private var madeMs = 0L
  private var made = Option.empty[Path]

  /** Address of the folder of copy files. */
  def address: String = folder.getFileSystem(hadoopConf).makeQualified(folder).toString

  /**
   * Makes a copy.
   *
   * @return files that were written for it
   */
  def make(
      head: CopyHead,
      source: CopySource,
      parts: Seq[CopyPart],
      signer: Option[BlockSigner]): Int = {
    val began = nowMs()
    if (began - writtenMs > GraceMs / 2) written = Map.empty
    val before = copies.manifests()
    written = written.filterNot { case (_, place) => isOld(CopyFile(gen, place.file), before) }
    val known = before.filter(_.gen == gen).flatMap(_.segments).toMap
    val isDue = surveyMs.forall(began - _ >= SurveyEveryMs)
    val listed = if (isDue) Some(survey(before, parts)) else None
    val files = new CopyFiles(
      source,
      filesOf(gen),
      signer,
      name =>
        written.get(name).orElse(known.get(name).filter(place =>
          listed.forall(_(CopyFile(gen, place.file))))),
      pause)
    val placed =
      try parts.map(part => part -> files.write(part))
      finally {
        written ++= files.written
        writtenMs = nowMs()
      }
    // After the grace, another driver deletes files that no manifest names yet.
    if (nowMs() - began > GraceMs / 2) checkFiles(head, placed.flatMap(_._2))
    checkBatch(head)
    val own = written.valuesIterator.map(place => CopyFile(gen, place.file)).toSet
    madeMs = nowMs()
    made = Some(copies.write(
      head,
      placed,
      own,
      others => {
        checkAge(head, own, others)
        since(others, listed, own)
      },
      () => mayRemove))
    if (isDue) surveyMs = Some(began)
    written = Map.empty
    files.written.values.map(_.file).toSet.size
  }

  /**
   * Removes old copies, then files that no copy has named for the grace. After a long pause it does
   * nothing: old copies named their files until now, which only the next copy records.
   */
  def tidy(unneeded: (String => FileStore) => UnneededFiles): Unit =
    made.filter(_ => mayRemove).map(copies.tidy).filter(_.nonEmpty).foreach { kept =>
      val copy = kept.maxBy(_.version)
      val now = nowMs()
      val due = copy.unneeded.keySet.filter(file =>
        !deleted(file) && kept.flatMap(_.unneeded.get(file)).forall(now - _ >= GraceMs)).toSeq
      if (due.nonEmpty) {
        val named = copies.manifests().flatMap(_.files).toSet
        // More than one copy writes, in random order: the first files may be among those that stay.
        val most = math.max(DeletedMax, 2 * copy.files.size)
        deleted ++= unneeded(filesOf).delete(Random.shuffle(due.filterNot(named)).take(most))
      }
      deleted = deleted.intersect(copy.unneeded.keySet)
    }

  /**
   * Returns whether other copies have listed a file as unneeded for so long that a driver may soon
   * delete it.
   */
  private def isOld(file: CopyFile, others: Seq[CopyManifest]): Boolean =
    others.flatMap(_.unneeded.get(file)).exists(nowMs() - _ > GraceMs / 2)

  private def checkAge(head: CopyHead, own: Set[CopyFile], others: Seq[CopyManifest]): Unit =
    own.find(isOld(_, others)).foreach { file =>
      throw new UnavailableException(
        s"copy version ${head.version} of $checkpoint: ${file.name} was written long ago, and another driver may delete it. The " +
          "copy is made later.")
    }

  /**
   * Returns whether old copies may be removed: they name their files until then, which the newest
   * manifest does not record.
   */
  private def mayRemove: Boolean = nowMs() - madeMs <= GraceMs / 2

  private def filesOf(of: String): FileStore = new HadoopFiles(new Path(folder, of), hadoopConf)

  /**
   * Lists files of copies, to find those that a killed driver left without a copy that names them.
   */
  private def survey(before: Seq[CopyManifest], parts: Seq[CopyPart]): Set[CopyFile] = {
    val known = before.flatMap(one => one.files ++ one.unneeded.keySet).groupMap(_.gen)(_.partition)
    val own = parts.map(part => BlockFileName.folderOf(part.id))
    val wanted = known.updated(gen, known.getOrElse(gen, Nil) ++ own)
    wanted.toSeq.flatMap { case (of, partitions) =>
      UnneededFiles.listed(of, filesOf(of), partitions)
    }.toSet
  }

  /** Returns since when no copy names each file that the new one does not. */
  private def since(
      others: Seq[CopyManifest],
      listed: Option[Set[CopyFile]],
      own: Set[CopyFile]): Map[CopyFile, Long] = {
    val now = nowMs()
    val named = others.flatMap(_.files).toSet
    val before = others.flatMap(_.unneeded).groupMapReduce(_._1)(_._2)(math.max)
    val all = named ++ before.keySet ++ listed.getOrElse(Set.empty) ++ own
    all.filter(file =>
      !deleted(file) && (own(file) || listed.forall(_(file)))).map { file =>
      file -> (if (named(file)) now else math.min(now, before.getOrElse(file, now)))
    }.toMap
  }

  /** Checks that the batch is still in Spark's log: otherwise no query can go back to it. */
  private def checkBatch(head: CopyHead): Unit =
    if (!copies.offsetsOf(head.version - 1).contains(head.offsets)) {
      throw new UnavailableException(
        s"copy version ${head.version} of $checkpoint: batch ${head.version - 1} left the offset log before the copy was " +
          "complete. The next copy uses the files that were written. If this repeats, raise " +
          "spark.sql.streaming.minBatchesToRetain.")
    }

  private def checkFiles(head: CopyHead, segments: Seq[CopiedSegment]): Unit = {
    val files = segments.flatMap(_.place).map(place => CopyFile(gen, place.file)).toSet
    val there = UnneededFiles.listed(gen, filesOf(gen), files.toSeq.map(_.partition)).toSet
    files.find(!there(_)).foreach { file =>
      throw new UnavailableException(
        s"copy version ${head.version} of $checkpoint: ${file.name} is not listed. The copy is made later.")
    }
  }
}

private[copies] object CopyMaker {

  /** Lifetime of a file that no copy names: drivers of older runs may be writing a copy. */
  val GraceMs: Long = TimeUnit.HOURS.toMillis(1)
  private val SurveyEveryMs = TimeUnit.DAYS.toMillis(1)
  private val DeletedMax = 1000
}
