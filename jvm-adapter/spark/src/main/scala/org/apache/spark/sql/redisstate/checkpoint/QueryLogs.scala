package org.apache.spark.sql.redisstate.checkpoint

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.jackson.JsonMethods

/**
 * Offset log and commit log of a query: a file for each batch, with its version in the first line
 * and its metadata in the second.
 */
private[redisstate] object QueryLogs {
  val Offsets = "offsets"
  val Commits = "commits"

  /** The batches of a log, in no order. */
  def batches(checkpoint: Path, log: String, hadoopConf: Configuration): Seq[Long] =
    try checkpoint.getFileSystem(hadoopConf).listStatus(new Path(checkpoint, log)).toSeq
        .map(_.getPath.getName).filter(_.forall(_.isDigit)).map(_.toLong)
    catch { case _: FileNotFoundException => Nil }

  /** Reads the metadata of a batch in a log. */
  def metadata(checkpoint: Path, log: String, batch: Long, hadoopConf: Configuration): JValue = {
    val in = checkpoint.getFileSystem(hadoopConf).open(new Path(checkpoint, s"$log/$batch"))
    try JsonMethods.parse(new String(in.readAllBytes(), UTF_8).linesIterator.drop(1).next())
    finally in.close()
  }

  /**
   * Returns the attempts that Spark has logged of a batch, by operator and partition, of all stores
   * of the operator; None in checkpoint format 1, where a version has one attempt.
   */
  def uniqueIds(
      checkpoint: Path,
      batch: Long,
      hadoopConf: Configuration): Option[Map[Long, Seq[Seq[String]]]] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val logged = metadata(checkpoint, Commits, batch, hadoopConf)
    (logged \ "stateUniqueIds").extractOpt[Map[String, Seq[Seq[String]]]].filter(_.nonEmpty)
      .map(_.map { case (operator, of) => operator.toLong -> of })
  }
}
