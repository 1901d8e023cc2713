package org.apache.spark.sql.redisstate.move.checkpoint

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.redisstate.checkpoint.{OnceFile, QueryLogs, TextFile}

/** Switch of a checkpoint that is changed in place: the plan of the batch after its last one. */
private[redisstate] object NextBatch {

  /** Returns whether the last batch is still the newest one in both logs. */
  def isFree(checkpoint: QueryCheckpoint, hadoopConf: Configuration): Boolean =
    Seq(QueryLogs.Offsets, QueryLogs.Commits).forall(log =>
      batches(checkpoint, log, hadoopConf).maxOption.contains(checkpoint.batch))

  /**
   * Plans it, unless another run of the query has done so.
   *
   * @return whether it was planned like this
   */
  def plan(checkpoint: QueryCheckpoint, entry: LogEntry, hadoopConf: Configuration): Boolean = {
    val batch = checkpoint.batch + 1
    val file = new Path(checkpoint.folder, s"${QueryLogs.Offsets}/$batch")
    isFree(checkpoint, hadoopConf) && {
      new OnceFile(file, hadoopConf).create(entry.text.getBytes(UTF_8))
      TextFile.read(file, hadoopConf).contains(entry.text)
    } && {
      val late = isPassed(checkpoint, batch, hadoopConf)
      if (late) new CheckpointFiles(hadoopConf).delete(file)
      !late
    }
  }

  /**
   * Returns whether another run carried that batch out long ago, so that Spark has removed its
   * entries. If another start continued from the entry that exists by now, the batch is in the
   * commit log.
   */
  private def isPassed(
      checkpoint: QueryCheckpoint,
      batch: Long,
      hadoopConf: Configuration): Boolean = {
    val done = batches(checkpoint, QueryLogs.Commits, hadoopConf)
    done.exists(_ > batch) && !done.contains(batch)
  }

  private def batches(
      checkpoint: QueryCheckpoint,
      log: String,
      hadoopConf: Configuration): Seq[Long] =
    QueryLogs.batches(checkpoint.folder, log, hadoopConf)
}
