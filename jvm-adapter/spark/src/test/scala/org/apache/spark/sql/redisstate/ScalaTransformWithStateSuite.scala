package org.apache.spark.sql.redisstate

import java.nio.file.{Files, Path}

import scala.annotation.nowarn
import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.{
  AnalysisException,
  DataFrame,
  Dataset,
  Encoders,
  KeyValueGroupedDataset,
  Row
}
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider
import org.apache.spark.sql.functions.{col, count, window}
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TimeMode, Trigger}

/** `transformWithState` in Scala: batch for batch what RocksDB's provider gives out, restarts included. */
class ScalaTransformWithStateSuite extends AnyFunSuite with SessionOnServer {
  import Processors._
  import ScalaTransformWithStateSuite._

  /** Events whose times rise by ten minutes a batch; one key of each comes at its end and never again. */
  private def batches(seed: Long): Seq[Seq[String]] = {
    val random = new Random(seed)
    def event(key: String, minute: Int) =
      f"""{"k": "$key", "v": ${random.nextInt(100) - 50}, "ts": "2024-01-01T10:$minute%02d:00Z"}"""
    (0 until 4).map { batch =>
      val many = Seq.fill(16)(event(s"k${random.nextInt(5)}", batch * 10 + random.nextInt(10)))
      many :+ event(s"once$batch", batch * 10 + 9)
    }
  }

  private def events(folder: Path): Dataset[In] = {
    val rows = spark.readStream
      .schema("k string, v long, ts timestamp")
      .option("maxFilesPerTrigger", 1)
      .json(folder.toString)
    rows.select(col("k").as("_1"), col("v").as("_2"), col("ts").as("_3")).as[In](in)
  }

  /**
   * Starts the query once for each group of batches; the output of each batch of each run as sorted
   * text.
   */
  private def outputs(provider: String, seed: Long, runs: Seq[Int], how: How)(
      build: Dataset[In] => DataFrame): Seq[Map[Long, Seq[String]]] = {
    val folder = Files.createTempDirectory("events")
    val checkpoint = Files.createTempDirectory("checkpoint")
    val lines = batches(seed)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    runs.indices.map { run =>
      val begin = runs.take(run).sum
      (begin until begin + runs(run)).foreach(number => add(folder, number, lines(number)))
      val found = mutable.Map.empty[Long, Seq[String]]
      val query = build(events(folder)).writeStream
        .outputMode(how.mode)
        .option("checkpointLocation", checkpoint.toString)
        .foreachBatch { (rows: Dataset[Row], batch: Long) =>
          found(batch) = rows.collect().map(_.toString).sorted.toSeq
          ()
        }
        .trigger(how.trigger)
        .start()
      query.awaitTermination()
      found.toMap
    }
  }

  /** Asserts that both providers give the same outputs; returns the output of each run as text. */
  private def same(seed: Long, runs: Seq[Int], how: How)(
      build: Dataset[In] => DataFrame): Seq[String] = {
    def asked(provider: Class[_]) = outputs(provider.getName, seed, runs, how)(build)
    val ours = asked(classOf[RedisStateStoreProvider])
    assert(ours == asked(classOf[RocksDBStateStoreProvider]))
    assert(ours.forall(_.nonEmpty), "a run without a batch would prove nothing")
    ours.map(_.toString)
  }

  private def timed(rows: Dataset[In]): KeyValueGroupedDataset[String, In] =
    rows.withWatermark("_3", "1 minute").groupByKey(_._1)(Encoders.STRING)

  private def transform(
      processor: => StatefulProcessor[String, In, Out],
      timeMode: TimeMode,
      mode: OutputMode)(rows: Dataset[In]): DataFrame =
    timed(rows).transformWithState(processor, timeMode, mode)(out).toDF()

  for (mode <- Seq(OutputMode.Append(), OutputMode.Update())) {
    test(s"$mode without time: value, list and map state") {
      val found = same(1, Seq(1, 1), How(mode))(transform(new Plain, TimeMode.None(), mode))
      assert(found.last.contains("Some("), "the second run should find the state of the first")
    }

    test(s"$mode in event time: value, list and map state, timers that fire after a restart") {
      val found = same(2, Seq(1, 2), How(mode))(
        transform(new WithTimers, TimeMode.EventTime(), mode))
      assert(!found.head.contains("once0,timer"))
      assert(found.last.contains("once0,timer"))
    }

    test(s"$mode in processing time: time to live, timers that fire after a restart") {
      // There is always a further batch to run, so AvailableNow would not end.
      val once = Trigger.Once(): @nowarn("cat=deprecation")
      val found = same(3, Seq(1, 1), How(mode, once))(
        transform(new Ageing, TimeMode.ProcessingTime(), mode))
      assert(!found.head.contains("timer"))
      assert(found.last.contains("timer"))
      assert(
        found.last.contains("input false Some("),
        "the short state should be gone, the other not")
    }
  }

  test("complete mode is refused in every time mode, as with RocksDB") {
    def refusal(provider: Class[_], timeMode: TimeMode): String = {
      val how = How(OutputMode.Complete())
      val build = transform(new Plain, timeMode, how.mode) _
      intercept[AnalysisException](outputs(provider.getName, 4, Seq(1), how)(build)).getCondition
    }
    Seq(TimeMode.None(), TimeMode.ProcessingTime(), TimeMode.EventTime()).foreach { timeMode =>
      val ours = refusal(classOf[RedisStateStoreProvider], timeMode)
      assert(ours != null)
      assert(ours == refusal(classOf[RocksDBStateStoreProvider], timeMode))
    }
  }

  test("an initial state") {
    val found = same(5, Seq(1, 1), How(OutputMode.Append())) { rows =>
      val begin = spark
        .createDataset((0 until 8).map(i => (s"k$i", 100000L * (i + 1))))(start)
        .groupByKey(_._1)(Encoders.STRING)
      timed(rows)
        .transformWithState(new Started, TimeMode.None(), OutputMode.Append(), begin)(out, start)
        .toDF()
    }
    assert("total [1-9]\\d{5}".r.findFirstIn(found.last).isDefined)
  }

  test("an aggregation behind it, by the event time that it gives out") {
    val found = same(6, Seq(1, 2), How(OutputMode.Append()))(rows =>
      timed(rows)
        .transformWithState(new WithTimers, "_3", OutputMode.Append())(out)
        .groupBy(window(col("_3"), "5 minutes"), col("_1"))
        .agg(count("*")))
    assert(found.last.contains("["))
  }
}

private object ScalaTransformWithStateSuite {

  /** Output mode and trigger of a query. */
  private final case class How(mode: OutputMode, trigger: Trigger = Trigger.AvailableNow())
}
