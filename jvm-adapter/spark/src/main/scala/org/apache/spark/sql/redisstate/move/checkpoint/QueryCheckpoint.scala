package org.apache.spark.sql.redisstate.move.checkpoint

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JObject, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.{QueryLogs, TextFile}
import org.apache.spark.sql.redisstate.move.engine.{Providers, StoreSpec}

import org.redisstate.core.errors.{ConfigException, FormatException}

/** An entry of a log of Spark's: its version, its metadata as one line of JSON, and what follows. */
private[redisstate] final case class LogEntry(
    version: String,
    metadata: JObject,
    rest: Seq[String]) {
  def text: String = (Seq(version, compact(render(metadata))) ++ rest).mkString("\n")
}

/**
 * A checkpoint whose last planned batch is committed, as its logs describe it.
 *
 * @param queryId from its `metadata` file
 * @param batch the last one
 * @param offsets entry of the batch
 * @param commit entry of the batch
 */
private[redisstate] final case class QueryCheckpoint(
    folder: Path,
    queryId: String,
    batch: Long,
    offsets: LogEntry,
    commit: LogEntry) {
  import QueryCheckpoint._

  def stateRoot: Path = new Path(folder, "state")

  /** Version of every store after the batch. */
  def version: Long = batch + 1

  /** Confs that Spark pinned for the query. */
  def conf: Map[String, String] =
    (offsets.metadata \ "conf").extractOpt[Map[String, String]].getOrElse(Map.empty)

  /** Spark's default, which an old checkpoint does not name. */
  def provider: String =
    conf.getOrElse(SQLConf.STATE_STORE_PROVIDER_CLASS.key, Providers.HdfsBacked)

  /** Unique ids of the versions by operator, partition and store; empty in checkpoint format 1. */
  def uids: Map[Long, Seq[Seq[String]]] =
    (commit.metadata \ UniqueIds).extractOpt[Map[String, Seq[Seq[String]]]].getOrElse(
      Map.empty).map {
      case (operator, ids) => operator.toLong -> ids
    }

  def hasIds: Boolean = uids.nonEmpty

  /**
   * Number of partitions of operators without a number of their own; an old checkpoint does not
   * name it.
   */
  def partitions: Option[Int] = partitionsIn(offsets.metadata)

  /**
   * The entry of the batch as a query with another provider, or another number of partitions, would
   * have it.
   */
  def offsetsWith(provider: String, partitions: Option[Int]): LogEntry =
    offsets.copy(metadata = merged(
      offsets.metadata,
      "conf" -> ((SQLConf.STATE_STORE_PROVIDER_CLASS.key -> provider) ~
        (SQLConf.SHUFFLE_PARTITIONS.key -> partitions.map(_.toString)))))

  /**
   * Returns the entry of a next batch without new data: it ends where this one ended, with the
   * watermark that Spark would give it.
   *
   * @param nowMs of the driver's clock
   * @param partitions from that batch on; None leaves them as they are
   */
  def emptyBatchWith(provider: String, nowMs: Long, partitions: Option[Int] = None): LogEntry = {
    val watermark = (commit.metadata \ "nextBatchWatermarkMs").extractOpt[Long].getOrElse(0L)
    val before = (offsets.metadata \ "batchTimestampMs").extractOpt[Long].getOrElse(0L)
    val times = ("batchWatermarkMs" -> watermark) ~ ("batchTimestampMs" -> math.max(nowMs, before))
    val entry = offsetsWith(provider, partitions)
    entry.copy(metadata = merged(entry.metadata, times))
  }

  /**
   * Returns the unique ids for a number of partitions: the existing ones, followed by more, which
   * are the same for every caller. A smaller number of partitions uses the existing ones.
   */
  def uidsFor(partitions: Int): Map[Long, Seq[Seq[String]]] =
    uids.map { case (operator, ids) =>
      val more = (ids.size until partitions).map { partition =>
        ids.head.indices.map { store =>
          val name = s"$queryId $batch $operator $partition $store"
          UUID.nameUUIDFromBytes(name.getBytes(UTF_8)).toString
        }
      }
      operator -> (ids ++ more)
    }

  def commitWith(uids: Map[Long, Seq[Seq[String]]]): LogEntry =
    if (!hasIds) commit
    else {
      val ids = JObject(uids.toList.map { case (operator, of) => operator.toString -> jsonOf(of) })
      commit.copy(metadata = JObject(commit.metadata.obj.map {
        case (UniqueIds, _) => UniqueIds -> ids
        case other => other
      }))
    }
}

private[redisstate] object QueryCheckpoint {
  private implicit val formats: DefaultFormats.type = DefaultFormats
  private val UniqueIds = "stateUniqueIds"

  /**
   * @throws ConfigException if it is no checkpoint, or its last batch is not committed
   * @throws FormatException if an entry cannot be read
   */
  def read(folder: Path, hadoopConf: Configuration): QueryCheckpoint = {
    val planned = QueryLogs.batches(folder, QueryLogs.Offsets, hadoopConf)
    val done = QueryLogs.batches(folder, QueryLogs.Commits, hadoopConf)
    val batch = planned.maxOption.getOrElse(throw new ConfigException(
      s"move the state of $folder: it has no batch in its offset log, so it is not the checkpoint of a query, or the " +
        "query never ran. Check the path. Nothing was changed."))
    if (!done.maxOption.contains(batch)) {
      throw new ConfigException(
        s"move the state of $folder: batch $batch is planned but not committed, so its state is not complete. " +
          "Start the query once with its present provider, wait until the batch ends, stop the query, and then move the " +
          "state. Nothing was changed.")
    }
    at(folder, batch, hadoopConf)
  }

  /**
   * After a batch that is committed, though it may not be the last one.
   *
   * @throws FormatException if an entry cannot be read
   */
  def at(folder: Path, batch: Long, hadoopConf: Configuration): QueryCheckpoint =
    QueryCheckpoint(
      folder,
      queryId(folder, hadoopConf),
      batch,
      entry(new Path(folder, s"${QueryLogs.Offsets}/$batch"), hadoopConf),
      entry(new Path(folder, s"${QueryLogs.Commits}/$batch"), hadoopConf)
    )

  /**
   * Checks that Spark can run a batch without new data: it drops the operator of a limit from an
   * empty batch, then fails to find it.
   *
   * @param instead what to do
   * @throws ConfigException the query has such an operator
   */
  def checkEmptyBatch(stores: Seq[StoreSpec], attempted: String, instead: String): Unit =
    stores.find(_.operatorName == "globalLimit").foreach { limit =>
      throw new ConfigException(
        s"$attempted: the query has a limit (operator ${limit.operator}), and Spark cannot run such a query in a batch without " +
          s"new data, which this step needs. Nothing was changed. $instead")
    }

  /** Number of partitions in an entry of the offset log. */
  def partitionsIn(offsets: JValue): Option[Int] =
    (offsets \ "conf" \ SQLConf.SHUFFLE_PARTITIONS.key).extractOpt[String].flatMap(_.toIntOption)

  private def queryId(folder: Path, hadoopConf: Configuration): String = {
    val file = new Path(folder, "metadata")
    val text = TextFile.read(file, hadoopConf).getOrElse(throw new ConfigException(
      s"move the state of $folder: it has no file metadata, so it is not the checkpoint of a query. Check the path. " +
        "Nothing was changed."))
    try ((parse(text): JValue) \ "id").extract[String]
    catch { case NonFatal(e) => throw unreadable(file, e) }
  }

  private def entry(file: Path, hadoopConf: Configuration): LogEntry =
    try {
      val lines = TextFile.read(file, hadoopConf).get.linesIterator.toSeq
      LogEntry(lines.head, parse(lines(1)).asInstanceOf[JObject], lines.drop(2))
    } catch { case NonFatal(e) => throw unreadable(file, e) }

  private def unreadable(file: Path, cause: Throwable) = new FormatException(
    s"read $file: it is cut off, or not written by Spark. Restore the file from a backup. Nothing was changed.",
    cause)

  def merged(metadata: JObject, more: JObject): JObject =
    metadata.merge(more: JValue).asInstanceOf[JObject]

  private def jsonOf(ids: Seq[Seq[String]]): JValue = ids.map(_.toList).toList
}
