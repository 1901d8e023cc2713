package org.apache.spark.sql.redisstate.move.checkpoint

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.nio.file.StandardCopyOption.ATOMIC_MOVE

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumFileSystem, FileContext, Options, Path, RawLocalFileSystem}
import org.json4s.{JArray, JInt, JString, JValue}
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.redisstate.checkpoint.TextFile

/** Small files of a checkpoint that are replaced as a whole. */
private[redisstate] final class CheckpointFiles(hadoopConf: Configuration) {
  import CheckpointFiles._

  /**
   * Replaces a file: by a rename where the file system has one, else by an upload, which is seen
   * whole or not at all. Spark's own way of writing files for object stores renames on a local
   * disk, and leaves an older file there.
   *
   * A local disk and HDFS replace in one step. ABFS removes the older file first: what a process
   * that dies then has left is put in place by [[recover]].
   */
  def write(file: Path, text: String): Unit = {
    val system = file.getFileSystem(hadoopConf) match {
      // The checksum that Hadoop keeps of a local file is in a second one. A file without one is
      // not checked.
      case local: ChecksumFileSystem =>
        local.getRawFileSystem.delete(local.getChecksumFile(file), false): Unit
        local.getRawFileSystem
      case other => other
    }
    val renames = Renaming(system.getUri.getScheme)
    val written = if (renames) aside(file) else file
    val out = system.create(written, true)
    try out.write(text.getBytes(UTF_8))
    finally out.close()
    if (system.getClass == classOf[RawLocalFileSystem])
      // Hadoop would remove the older file first.
      Files.move(Paths.get(written.toUri.getPath), Paths.get(file.toUri.getPath), ATOMIC_MOVE): Unit
    else if (renames)
      FileContext.getFileContext(file.toUri, hadoopConf)
        .rename(written, file, Options.Rename.OVERWRITE)
  }

  /**
   * Completes a replacement that a killed process had begun: the older file is gone, the new one is
   * whole.
   */
  def recover(file: Path): Unit = {
    val system = file.getFileSystem(hadoopConf)
    if (!system.exists(file) && system.exists(aside(file)))
      FileContext.getFileContext(file.toUri, hadoopConf).rename(aside(file), file)
  }

  private def aside(file: Path) = new Path(file.getParent, s".${file.getName}$Aside")

  /** The file whose place this one was to take. */
  private def replacedBy(written: Path): Option[Path] =
    Option.when(isAside(written))(
      new Path(written.getParent, written.getName.drop(1).dropRight(Aside.length)))

  /**
   * Rewrites what Spark's operator metadata says of one operator.
   *
   * @param stateRoot the state folder that has it
   * @param partitions None leaves their number as it is
   */
  def describe(stateRoot: Path, operator: Long, partitions: Option[Int]): Unit = {
    val folder = new Path(stateRoot, s"$operator/_metadata")
    Seq(folder, new Path(folder, "v2")).foreach { place =>
      list(place).flatMap(replacedBy).foreach(recover)
      list(place).filter(file => file.getName == "metadata" || file.getName.toLongOption.isDefined)
        .foreach(describe(_, stateRoot, operator, partitions))
    }
  }

  def list(folder: Path): Seq[Path] = {
    val system = folder.getFileSystem(hadoopConf)
    if (system.exists(folder)) system.listStatus(folder).toSeq.map(_.getPath) else Nil
  }

  /** Returns the files with a number as their name. */
  def numbered(folder: Path): Seq[Long] = list(folder).flatMap(_.getName.toLongOption).sorted

  def delete(path: Path): Unit = {
    path.getFileSystem(hadoopConf).delete(path, true)
    ()
  }

  /**
   * Rewrites one metadata file, which names schema files with their whole path, and the number of
   * partitions.
   */
  private def describe(
      metadata: Path,
      stateRoot: Path,
      operator: Long,
      partitions: Option[Int]): Unit = {
    val text = TextFile.read(metadata, hadoopConf).get
    val (version, json) = text.splitAt(text.indexOf('\n') + 1)
    val named = parse(json).transformField {
      case ("stateSchemaFilePaths", JArray(paths)) =>
        "stateSchemaFilePaths" -> (JArray(paths.map {
          case JString(path) =>
            JString(StateCatalog.schemaFile(stateRoot, operator, new Path(path)).toString)
          case other => other
        }): JValue)
      case ("numPartitions", before) =>
        "numPartitions" -> partitions.fold(before)(JInt(_): JValue)
    }
    val now = version + compact(render(named))
    if (now != text) write(metadata, now)
  }
}

private[move] object CheckpointFiles {

  /** File systems with a rename that replaces a file. */
  private val Renaming = Set("file", "hdfs", "viewfs", "abfs", "abfss")

  /** Ends the name of what is to take a file's place. It is whole once the file is gone. */
  private val Aside = ".redis_state"

  /** Returns whether a file was about to replace another one. */
  def isAside(file: Path): Boolean = file.getName.startsWith(".") && file.getName.endsWith(Aside)
}
