package org.apache.spark.sql.redisstate.stores

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/** Spark 4.0 does not ask which stores have committed. */
private[redisstate] object CommitReport {
  def send(version: Long, id: StateStoreId, conf: StateStoreConf, hadoopConf: Configuration): Unit =
    ()
}
