package org.apache.spark.sql.redisstate

/**
 * Tests of Spark's that say nothing about our provider, or ask for another's nature, each with its
 * reason. Everything else runs.
 */
private[redisstate] object NotRun {

  private val Recorded =
    "goes on from a checkpoint that an earlier Spark wrote with HDFSBackedStateStoreProvider, to which Spark keeps; the files lie in " +
      "Spark's test jar, where the test cannot read them"

  private val EachChange =
    "counts each change of a key in a batch; here a change feed has the net one (docs/compatibility.md), as test_state_reader.py tests"

  private val OfRocksDB = "asks for RocksDB's own metrics, under its names"

  private val Each = ""

  /** Our suite (`Each`: every one that has the test), how the test's name begins, and the reason. */
  private val Tests: Seq[(String, String, String)] = Seq(
    (
      "SparkStateStoreSuite",
      "SPARK-18342: commit fails when rename fails",
      "lets the rename of the file fail that a commit writes, and wants HDFSStateStore or RocksDBStateStore in the " +
        "message; a commit of this provider writes no file. StoreLifeCycleSuite tests a checkpoint folder that fails"),
    (
      "SparkCheckpointFormat2Suite",
      "checkpointFormatVersion2 racing commits",
      "makes RocksDB's provider itself; RedisIdsSuite does the same with ours"),
    (
      "SparkCheckpointFormat2Suite",
      "StateStoreBaseCheckpointIdMismatch error",
      "about the text of an error that the driver raises"),
    (
      "StreamingAggregationSuiteOnRedis",
      "simple count, update mode - recovery from checkpoint uses state format version 1",
      Recorded),
    (
      "StreamingDeduplicationSuiteOnRedis",
      "SPARK-39650: recovery from checkpoint",
      Recorded),
    (
      "EventTimeWatermarkSuiteOnRedis",
      "recovery from Spark ver 2.3.1 commit log",
      Recorded),
    (
      "EventTimeWatermarkSuiteOnRedis",
      "MultipleWatermarkPolicy: recovery from Spark ver 2.3.1",
      Recorded),
    (
      "FlatMapGroupsWithStateSuiteOnRedis",
      "flatMapGroupsWithState - recovery from checkpoint uses state format version 1",
      Recorded),
    (
      "StateDataSourceChangeDataReaderSuiteOnRedis",
      "read stream-stream join state change feed",
      EachChange),
    (
      "StateDataSourceTransformWithStateSuiteOnRedis",
      "state data source cdf integration - list state and TTL",
      EachChange),
    (
      "StateDataSourceChangeDataReaderSuiteOnRedis",
      "getChangeDataReader of state store provider",
      "reads by the provider that writes: a run that has opened version 3 is kept from version 1. Spark's readers have " +
        "providers of their own, which the other tests of this suite use"),
    (
      "StreamingAggregationSuiteOnRedis",
      "changing schema of state when restarting query - schema check off",
      "wants exactly SparkException; ours is a class below it"),
    (
      "StateDataSourceTransformWithStateSuiteOnRedis",
      "snapshotStartBatchId with transformWithState",
      "waits for the snapshot files of RocksDB's provider; test_state_reader.py starts from a snapshot of ours"),
    (Each, "SPARK-26187 restore the stream-stream", Recorded),
    (Each, "SPARK-48687 - restore the stream-stream", Recorded),
    (
      Each,
      "SPARK-51779 Restart streaming join query with virtual column families",
      OfRocksDB),
    (
      Each,
      "SPARK-51779 Restart the join query and changing state format versions",
      OfRocksDB),
    (
      Each,
      "SPARK-51779 Join query using virtual column families with HDFS should fail",
      "wants an error of HDFSBackedStateStoreProvider, which has one column family")
  )

  def reason(suite: Class[_], test: String): Option[String] =
    Tests.collectFirst {
      case (of, begins, why)
          if (of == Each || suite.getSimpleName == of) && test.startsWith(begins) =>
        why
    }
}
