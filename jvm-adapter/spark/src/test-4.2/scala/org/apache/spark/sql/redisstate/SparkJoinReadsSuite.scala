package org.apache.spark.sql.redisstate

import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.functions._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.StreamTest

/**
 * Joins kept by this provider, read by Spark's state reader. Covers each state format in both
 * checkpoint formats.
 */
class SparkJoinReadsSuite extends StreamTest with OnRedis {
  import testImplicits._

  private def joined(
      left: MemoryStream[(String, Int, Long)],
      right: MemoryStream[(String, Int, Long)]) =
    side(left, "l").join(
      side(right, "r"),
      expr("lk = rk AND ln = rn AND rt BETWEEN lt AND lt + INTERVAL 10 SECONDS"))

  private def side(input: MemoryStream[(String, Int, Long)], of: String): DataFrame =
    input.toDF()
      .select($"_1".as(s"${of}k"), $"_2".as(s"${of}n"), timestamp_seconds($"_3").as(s"${of}t"))
      .withWatermark(s"${of}t", "5 seconds")

  /** A checkpoint of two batches that evict nothing. */
  private def withJoin(stateFormat: Int, checkpointFormat: Int)(read: String => Unit): Unit =
    withSQLConf(
      SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key -> stateFormat.toString,
      SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key -> checkpointFormat.toString,
      SQLConf.SHUFFLE_PARTITIONS.key -> "2",
      SQLConf.STREAMING_NO_DATA_MICRO_BATCHES_ENABLED.key -> "false"
    ) {
      withTempDir { folder =>
        val (left, right) = (MemoryStream[(String, Int, Long)], MemoryStream[(String, Int, Long)])
        testStream(joined(left, right))(
          StartStream(checkpointLocation = folder.getPath),
          MultiAddData(left, Lefts.take(3): _*)(right, Rights.take(1): _*),
          ProcessAllAvailable(),
          MultiAddData(left, Lefts.drop(3): _*)(right, Rights.drop(1): _*),
          ProcessAllAvailable(),
          StopStream
        )
        read(folder.getPath)
      }
    }

  private def state(checkpoint: String, options: (String, String)*): DataFrame =
    spark.read.format("statestore").options(options.toMap).load(checkpoint)

  private val Lefts =
    Seq(("a", 1, 10L), ("a", 1, 11L), ("bb", 2, 10L), ("a", 1, 12L), ("c", 3, 13L))
  private val Rights = Seq(("a", 1, 10L), ("bb", 2, 12L), ("d", 4, 14L))

  for (stateFormat <- 1 to 4; checkpointFormat <- 1 to 2) {
    test(s"both sides of a join: state format $stateFormat, checkpoint format $checkpointFormat") {
      withJoin(stateFormat, checkpointFormat) { checkpoint =>
        for ((of, rows) <- Seq("left" -> Lefts, "right" -> Rights)) {
          val (first, columns) = (of.take(1), Seq("k", "n", "t"))
          def values(found: DataFrame): DataFrame =
            found.selectExpr(columns.map(c => s"value.$first$c") ++ Seq(
              "key.field0",
              "key.field1"): _*)
          def expected(rows: Seq[(String, Int, Long)]): Seq[Row] = rows.map { case (k, n, t) =>
            Row(k, n, java.sql.Timestamp.from(java.time.Instant.ofEpochSecond(t)), k, n)
          }
          val inFirst = if (of == "left") 3 else 1
          checkAnswer(values(state(checkpoint, "joinSide" -> of)), expected(rows))
          checkAnswer(
            values(state(checkpoint, "joinSide" -> of, "batchId" -> "0")),
            expected(rows.take(inFirst)))
          val replayed = (0 until 2).map { partition =>
            state(
              checkpoint,
              "joinSide" -> of,
              "snapshotStartBatchId" -> "0",
              "snapshotPartitionId" -> partition.toString)
          }
          checkAnswer(values(replayed.reduce(_ union _)), expected(rows))
        }
      }
    }
  }

  test("keys of state format 4 have their event time, and every family is read by its name") {
    withJoin(4, 2) { checkpoint =>
      val times = Lefts.map { case (k, _, t) => Row(k, t * 1000000) }
      val side = state(checkpoint, "joinSide" -> "left").select("key.field0", "key.__event_time")
      checkAnswer(side, times)
      for (family <- Seq("left-keyWithTsToValues", "left-tsWithKey")) {
        val rows = state(checkpoint, "stateVarName" -> family)
        checkAnswer(rows.select("key.field0", "key.__event_time"), times)
        val changes = state(
          checkpoint,
          "stateVarName" -> family,
          "readChangeFeed" -> "true",
          "changeStartBatchId" -> "0")
        checkAnswer(changes.select("key.field0", "key.__event_time"), times)
      }
    }
  }
}
