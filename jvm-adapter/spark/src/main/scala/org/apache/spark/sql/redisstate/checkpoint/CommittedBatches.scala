package org.apache.spark.sql.redisstate.checkpoint

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

import org.redisstate.core.protocol.CommitLog

/**
 * Commit log beside a state folder, one file a batch. It is read only when a task takes a partition
 * that another run has continued: after a crash, a rewind, or a second start.
 *
 * @param stateRoot the checkpoint's state folder, as Spark names it in a store's id
 */
private[redisstate] final class CommittedBatches(stateRoot: String, hadoopConf: Configuration)
    extends CommitLog {
  private val folder = Option(new Path(stateRoot).getParent).map(new Path(_, "commits"))

  /** Batch n loads version n. Old entries are removed, so a newer one says it too. */
  override def hasBatchFrom(version: Long): Boolean = folder.exists { folder =>
    val manager = CheckpointFileManager.create(folder, hadoopConf)
    manager.exists(folder) &&
    manager.list(folder).exists(_.getPath.getName.toLongOption.exists(_ >= version))
  }
}
