package org.apache.spark.sql.redisstate.checkpoint

import java.io.FileNotFoundException

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}
import org.json4s.JValue
import org.json4s.jackson.JsonMethods.parse

import org.redisstate.core.errors.{ConfigException, FormatException}

/** The metadata files that Spark keeps in the state folder of each operator. */
private[redisstate] object OperatorMetadata {

  /**
   * Returns the newest metadata up to a batch, with its file.
   *
   * @param operator the operator's folder
   * @throws ConfigException if there is none
   * @throws FormatException if it cannot be read
   */
  def newest(operator: Path, batch: Long, hadoopConf: Configuration): (Path, JValue) = {
    val folder = new Path(operator, "_metadata")
    val newest = numbered(new Path(folder, "v2"), hadoopConf).filter(_ <= batch).maxOption
    val file = newest.fold(new Path(folder, "metadata"))(at => new Path(folder, s"v2/$at"))
    val text = TextFile.read(file, hadoopConf).getOrElse(throw new ConfigException(
      s"move the state of operator ${operator.getName}: Spark wrote no metadata of it, so the checkpoint was made " +
        "before Spark 3.5. Run one batch with a newer Spark and the present provider, then move the state. Nothing " +
        "was changed."))
    try file -> parse(text.substring(text.indexOf('\n') + 1))
    catch { case NonFatal(e) => throw unreadable(file, e) }
  }

  /** Returns the names in a folder that are numbers, in ascending order. */
  def numbered(folder: Path, hadoopConf: Configuration): Seq[Long] = {
    val fs = folder.getFileSystem(hadoopConf)
    val found =
      try fs.listStatus(folder)
      catch { case _: FileNotFoundException => Array.empty[FileStatus] }
    found.toSeq.flatMap(_.getPath.getName.toLongOption).sorted
  }

  def unreadable(file: Path, cause: Throwable): FormatException = new FormatException(
    s"read $file: it is missing, cut off, or not written by Spark. Restore the file from a backup. Nothing was " +
      "changed.",
    cause)
}
