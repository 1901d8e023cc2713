package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.sql.Timestamp
import java.util.concurrent.ConcurrentHashMap

import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually.{eventually, interval, timeout}
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.{Millis, Seconds, Span}

import org.apache.spark.sql.{Encoders, ForeachWriter, SparkSession}
import org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.streaming.{OutputMode, StreamingQuery, TimeMode, Trigger}

import org.redisstate.core.RedisServerProcess

/**
 * `transformWithState` in Scala, in real-time mode: row for row what RocksDB's provider gives out.
 *
 * Spark's list of operators that may run in this mode goes by class names, so this provider's needs
 * the list's switch.
 */
class RealTimeTransformWithStateSuite extends AnyFunSuite with BeforeAndAfterAll {
  import Processors._
  import RealTimeTransformWithStateSuite._

  private lazy val server = new RedisServerProcess
  private lazy val spark: SparkSession = SparkSession
    .builder()
    .master("local[4]") // all stages of a batch run at once
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.codegen.wholeStage", "false") // compiling would be most of the time
    .config("spark.sql.extensions", classOf[RedisStateSparkExtension].getName)
    .config(
      StaticSQLConf.STREAMING_QUERY_LISTENERS.key,
      classOf[RedisStateQueryListener].getName)
    .config(RedisStateConf.Prefix + "url", server.url)
    .config(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key, "2")
    .config("spark.sql.streaming.realTimeMode.minBatchDuration", "1s")
    .config("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
    .getOrCreate()

  override def afterAll(): Unit = {
    spark.stop()
    server.close()
  }

  private def event(key: String, value: Long): In = (key, value, new Timestamp(value * 1000))

  /** An ordinary batch, then a real-time run for each further group of rows; what came out of it. */
  private def outputs(provider: Class[_], runs: Seq[Seq[In]]): Seq[Set[String]] = {
    val key = SQLConf.STATE_STORE_PROVIDER_CLASS.key
    val checkpoint = Files.createTempDirectory("checkpoint").toString
    val stream = LowLatencyMemoryStream.singlePartition[In](spark)(in)
    val rows = stream.toDS().groupByKey(_._1)(Encoders.STRING)
    val states = rows.transformWithState(new Plain, TimeMode.None(), OutputMode.Update())(out)
    def start(trigger: Trigger): StreamingQuery =
      states.writeStream
        .outputMode(OutputMode.Update())
        .foreach(new Keep(checkpoint))
        .option("checkpointLocation", checkpoint)
        .trigger(trigger)
        .start()

    spark.conf.set(key, provider.getName)
    stream.addData(runs.head)
    start(Trigger.AvailableNow()).awaitTermination()
    // 4.3 starts no query in this mode where the session names another provider.
    spark.conf.unset(key)
    val first = taken(checkpoint)
    first +: runs.tail.map { group =>
      val query = start(Trigger.RealTime("1 second"))
      stream.addData(group)
      awaitRead(query, group.size.toLong)
      query.stop()
      taken(checkpoint)
    }
  }

  private def awaitRead(query: StreamingQuery, rows: Long): Unit =
    eventually(timeout(Span(120, Seconds)), interval(Span(50, Millis))) {
      query.exception.foreach(throw _)
      assert(query.recentProgress.map(_.numInputRows).sum == rows)
    }

  /** A new query in real-time mode, with a restart half way; what came out of both runs. */
  private def newQuery(isRedis: Boolean, runs: Seq[Seq[In]]): Seq[Set[String]] = {
    val checkpoint = Files.createTempDirectory("checkpoint").toString
    val stream = LowLatencyMemoryStream.singlePartition[In](spark)(in)
    val rows = stream.toDS().groupByKey(_._1)(Encoders.STRING)
    val states = rows.transformWithState(new Plain, TimeMode.None(), OutputMode.Update())(out)
    runs.map { group =>
      spark.conf.set(RedisStateConf.Prefix + "realTime", isRedis.toString)
      val query = states.writeStream
        .outputMode(OutputMode.Update())
        .foreach(new Keep(checkpoint))
        .option("checkpointLocation", checkpoint)
        .trigger(Trigger.RealTime("1 second"))
        .start()
      stream.addData(group)
      awaitRead(query, group.size.toLong)
      val metrics = query.lastProgress.stateOperators.head.customMetrics
      assert(metrics.containsKey("redisStateRowsWritten") == isRedis)
      query.stop()
      taken(checkpoint)
    }
  }

  test("a new query begins in real-time mode, and goes on after a restart") {
    val runs =
      Seq(Seq(event("a", 1), event("b", -2), event("a", 3)), Seq(event("b", 4), event("a", -5)))
    val ours = newQuery(isRedis = true, runs)
    assert(ours == newQuery(isRedis = false, runs))
    assert(ours.map(_.size) == Seq(3, 2))
    assert(ours.last.exists(_.contains("before Some(4)")), "the state of the first run is there")
  }

  test("a query that an ordinary batch began goes on in real-time mode, restarts included") {
    val runs = Seq(
      Seq(event("a", 1), event("b", -2), event("a", 3)),
      Seq(event("b", 4), event("c", -5)),
      Seq(event("a", 6), event("c", 7), event("c", -8)))
    val ours = outputs(classOf[RedisStateStoreProvider], runs)
    assert(ours == outputs(classOf[RocksDBStateStoreProvider], runs))
    assert(ours.map(_.size) == Seq(2, 2, 3), "in real-time mode each row gives out one")
    assert(ours.last.exists(_.contains("before Some(4)")), "the state of the first batch is there")
  }
}

private object RealTimeTransformWithStateSuite {
  private val rows = new ConcurrentHashMap[String, Set[String]]

  /**
   * Removes and returns the rows that the query of a checkpoint has written since the last call.
   */
  private def taken(checkpoint: String): Set[String] =
    Option(rows.remove(checkpoint)).getOrElse(Set.empty)

  private final class Keep(checkpoint: String) extends ForeachWriter[Processors.Out] {
    override def open(partition: Long, epoch: Long): Boolean = true
    override def process(row: Processors.Out): Unit = {
      rows.merge(checkpoint, Set(row.toString), (known, more) => known ++ more)
      ()
    }
    override def close(error: Throwable): Unit = ()
  }
}
