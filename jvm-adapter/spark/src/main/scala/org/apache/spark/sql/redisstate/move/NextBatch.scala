package org.apache.spark.sql.redisstate.move

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.redisstate.checkpoint.{OnceFile, QueryLogs}

/** The switch of a checkpoint that is changed where it is: the plan of the batch behind its last one. */
private[redisstate] object NextBatch {

  /** Whether a batch is the last one that is planned and the last one that is committed. */
  def isFree(checkpoint: QueryCheckpoint, hadoopConf: Configuration): Boolean =
    isNewest(checkpoint, checkpoint.batch, hadoopConf)

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
      QueryCheckpoint.textOf(file, hadoopConf).contains(entry.text)
    } && {
      // A run beside this one may have planned that batch long ago, so that Spark has removed its entry.
      val holds = isNewest(checkpoint, batch, hadoopConf)
      if (!holds) new CheckpointFiles(hadoopConf).delete(file)
      holds
    }
  }

  private def isNewest(
      checkpoint: QueryCheckpoint,
      planned: Long,
      hadoopConf: Configuration): Boolean = {
    def newest(log: String) = QueryLogs.batches(checkpoint.folder, log, hadoopConf).maxOption
    newest(QueryLogs.Offsets).contains(planned) &&
    newest(QueryLogs.Commits).contains(checkpoint.batch)
  }
}
