package org.apache.spark.sql.redisstate

import org.scalatest.{Args, Status, SucceededStatus, Suites}

import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.MarkerFile

import org.redisstate.core.backend.Clock

/**
 * Joins of all state formats in Spark's own suites of its state reader, which run 3 and 4 for
 * RocksDB's provider only, on ours.
 */
class SparkRocksDBReaderSuite
    extends Suites(
      new RocksDBStateDataSourceReadSuiteOnRedis,
      new RocksDBWithChangelogReadSuiteOnRedis)

private class RocksDBStateDataSourceReadSuiteOnRedis
    extends RocksDBStateDataSourceReadSuite with JoinReadsOnRedis

private class RocksDBWithChangelogReadSuiteOnRedis
    extends RocksDBWithChangelogCheckpointStateDataSourceReaderSuite with JoinReadsOnRedis

/** The session names RocksDB's provider, and its queries run on ours: the reader goes by the checkpoint. */
private trait JoinReadsOnRedis extends StateDataSourceReadSuite with OnRedis {

  override protected def runTest(testName: String, args: Args): Status =
    if (testName.startsWith("stream-stream join")) super.runTest(testName, args)
    else SucceededStatus

  override protected def runStreamStreamJoinQuery(checkpointRoot: String): Unit = {
    withSQLConf(SQLConf.STATE_STORE_PROVIDER_CLASS.key -> OnRedis.Ours) {
      super.runStreamStreamJoinQuery(checkpointRoot)
    }
    val hadoopConf = spark.sessionState.newHadoopConf()
    val marker = new MarkerFile(s"$checkpointRoot/state", hadoopConf, Clock.System)
    assert(marker.read().isDefined, "the query has no state in Redis")
  }
}
