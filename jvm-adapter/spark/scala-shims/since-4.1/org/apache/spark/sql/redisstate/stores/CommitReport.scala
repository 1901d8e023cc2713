package org.apache.spark.sql.redisstate.stores

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreConf, StateStoreId}

/** Since 4.1 Spark can ask each store whether it has committed, and fails a batch otherwise. */
private[redisstate] object CommitReport {
  def send(version: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    if (conf.commitValidationEnabled)
      StateStore.reportCommitToCoordinator(version, id, hadoopConf)
}
