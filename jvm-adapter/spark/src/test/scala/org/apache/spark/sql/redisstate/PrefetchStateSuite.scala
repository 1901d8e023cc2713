package org.apache.spark.sql.redisstate

import java.io.ByteArrayOutputStream
import java.nio.file.{Files, Path}

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.{DataFrame, Dataset, Encoders, Row}
import org.apache.spark.sql.execution.streaming.state.{RocksDBStateStoreProvider, StateStore}
import org.apache.spark.sql.functions.{col, count, expr, max, session_window, window}
import org.apache.spark.sql.redisstate.checkpoint.SteppedFileSystem
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.streaming._

/** Operators whose state is read from files ahead of them: the plan, the rows and the reads. */
class PrefetchStateSuite extends AnyFunSuite with SessionOnServer {
  import PrefetchStateSuite._

  override protected def settings: Map[String, String] =
    SteppedFileSystem.settings.map { case (name, value) =>
      (if (name.startsWith("fs.")) s"spark.hadoop.$name" else name) -> value
    } ++ Map(
      "spark.sql.streaming.noDataMicroBatches.enabled" -> "false",
      RedisStateConf.Prefix + "versionsToRetain" -> "2",
      "spark.sql.streaming.minBatchesToRetain" -> "2",
      "spark.sql.streaming.stateStore.maintenanceInterval" -> "200ms"
    )

  private def run(provider: String, folder: Path, checkpoint: String, build: Build): Life = {
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    build.conf.foreach { case (name, value) => spark.conf.set(name, value) }
    val outputs = mutable.ArrayBuffer.empty[Seq[String]]
    val rows =
      spark.readStream.schema("k string, pad string, ts timestamp, at timestamp")
        .option("maxFilesPerTrigger", 1).json(folder.toString)
    val query = build.of(rows).writeStream
      .outputMode(build.mode)
      .option("checkpointLocation", checkpoint)
      .foreachBatch { (batch: Dataset[Row], _: Long) =>
        outputs += batch.collect().map(_.toString).sorted.toSeq
        ()
      }
      .trigger(Trigger.AvailableNow())
      .start()
    query.awaitTermination()
    build.conf.keys.foreach(spark.conf.unset)
    val plan = new ByteArrayOutputStream
    Console.withOut(plan)(query.explain())
    val prefetched = query.recentProgress.flatMap(_.stateOperators).map { operator =>
      Option(operator.customMetrics.get("redisStateBucketsPrefetched")).fold(0L)(_.toLong)
    }.sum
    Life(outputs.toSeq, plan.toString, prefetched)
  }

  private val counts = Build("update", _.groupBy("k").agg(max("pad"), count("*")))

  private val builds = Seq(
    "aggregation" -> counts,
    "deduplication" -> Build("append", _.dropDuplicates("pad")),
    "session window" -> Build(
      "complete",
      _.groupBy(session_window(col("ts"), "1 minute"), col("k")).agg(max("pad"), count("*"))),
    "groups with state" -> Build(
      "update",
      _.select("k", "pad").as[(String, String)](pair).groupByKey(_._1)(Encoders.STRING)
        .flatMapGroupsWithState(OutputMode.Update, GroupStateTimeout.NoTimeout)(last)(pair, pair)
        .toDF()
    ),
    "transformWithState" -> Build(
      "update",
      _.select("k", "pad").as[(String, String)](pair).groupByKey(_._1)(Encoders.STRING)
        .transformWithState(new Longest, TimeMode.None(), OutputMode.Update())(pair).toDF()
    ),
    "inner join" -> Build("append", joined("inner", "k"), stores = 4),
    "inner join by time" -> Build("append", joined("inner", "k", isTimed = true), stores = 4),
    // Spark 4.3 takes format 2 for it.
    "outer join of families" -> Build(
      "append",
      joined("left_outer", "pad", isTimed = true),
      conf = Map("spark.sql.streaming.join.stateFormatVersion" -> "3"),
      stores = 4),
    "outer join of windows" -> Build("append", joined("left_outer", "window"), stores = 4)
  )

  for ((name, build) <- builds) test(s"$name reads its state ahead, and gives the same rows") {
    val folder = Files.createTempDirectory("events")
    val dice = new Random(3)
    val pads = Seq.fill(6000)(dice.alphanumeric.take(1000).mkString)
    def more(batches: Range): Unit = batches.foreach { number =>
      add(
        folder,
        number,
        Seq.fill(500)(dice.nextInt(pads.size)).map(i =>
          s"""{"k":"k$i","pad":"${pads(
              i)}","ts":"2024-01-01T10:0${i % 10}:00Z","at":"2024-01-01T10:${10 + number}:00Z"}""")
      )
    }
    // Maintenance of other suites' stores, whose servers have gone, would delay that of these.
    StateStore.stop()
    val checkpoints = Providers.map(_ => s"names:${Files.createTempDirectory("checkpoint")}")
    spark.conf.set(RedisStateConf.Prefix + "redisMemory", s"${2176 * build.stores}k")
    def lives(): (Life, Life) = {
      val all = Providers.zip(checkpoints).map { case (one, at) => run(one, folder, at, build) }
      (all.head, all.last)
    }
    more(0 until 10)
    val (first, firstOurs) = lives()
    assert(firstOurs.outputs == first.outputs)
    more(10 until 12)
    // A second run has nothing in memory; what it reads in the background comes late.
    SteppedFileSystem.step = _ =>
      if (Thread.currentThread.getName.startsWith("redis-state-background")) Thread.sleep(500)
    try {
      val (spark, ours) = lives()
      assert(ours.outputs == spark.outputs)
      assert(ours.prefetched > 0)
      assert(ours.plan.contains(Node) && !spark.plan.contains(Node))
    } finally SteppedFileSystem.step = _ => ()
  }

  test("a query without files has the plan of Spark") {
    spark.conf.unset(RedisStateConf.Prefix + "redisMemory")
    val folder = Files.createTempDirectory("events")
    add(folder, 0, Seq("""{"k":"a","pad":"b"}"""))
    val checkpoint = s"names:${Files.createTempDirectory("checkpoint")}"
    val found = run(Providers.last, folder, checkpoint, counts)
    assert(found.outputs == Seq(Seq("[a,b,1]")))
    assert(found.plan.contains("StateStoreRestore") && !found.plan.contains(Node))
  }
}

private object PrefetchStateSuite {

  /** The node with its first argument, as a plan shows it. */
  private val Node = "PrefetchState ["

  /** Output of each batch, the plan of the last one, and buckets that were read ahead. */
  private final case class Life(outputs: Seq[Seq[String]], plan: String, prefetched: Long)

  /** @param stores number of stores of the operator */
  private final case class Build(
      mode: String,
      of: DataFrame => DataFrame,
      conf: Map[String, String] = Map.empty,
      stores: Int = 1)

  /**
   * The rows, joined with themselves by a column.
   *
   * @param isTimed whether the times of both rows are near, so that a join forgets old rows
   */
  private def joined(how: String, by: String, isTimed: Boolean = false)(
      rows: DataFrame): DataFrame = {
    val marked = rows.withWatermark("at", "2 minutes")
    val (late, key) =
      if (by != "window") (marked, Seq(by))
      else (marked.withColumn(by, window(col("at"), "12 minutes")).drop("at"), Seq("k", by))
    val near = expr("b.at between a.at - interval 3 minutes and a.at + interval 2 minutes")
    val same = key.map(name => col(s"a.$name") === col(s"b.$name"))
    late.as("a").join(late.as("b"), (if (isTimed) same :+ near else same).reduce(_ && _), how)
  }

  /** Longest text of a group and number of its rows, in each kind of state. */
  private final class Longest
      extends StatefulProcessor[String, (String, String), (String, String)] {
    @transient private var value: ValueState[String] = _
    @transient private var list: ListState[String] = _
    @transient private var map: MapState[String, String] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      value = getHandle.getValueState("value", Encoders.STRING, TTLConfig.NONE)
      list = getHandle.getListState("list", Encoders.STRING, TTLConfig.NONE)
      map = getHandle.getMapState("map", Encoders.STRING, Encoders.STRING, TTLConfig.NONE)
    }

    override def handleInputRows(
        key: String,
        rows: Iterator[(String, String)],
        timers: TimerValues): Iterator[(String, String)] = {
      val pads = rows.map(_._2).toSeq
      val longest = (Option(value.get()).toSeq ++ pads).max
      value.update(longest)
      pads.foreach(list.appendValue)
      pads.foreach(pad => map.updateValue(pad.take(1), pad))
      Iterator((key, s"$longest ${list.get().size} ${map.iterator().map(_._2).toSeq.sorted}"))
    }
  }

  private val pair = Encoders.tuple(Encoders.STRING, Encoders.STRING)

  /** Longest text of a group, and the number of its rows. */
  private def last(
      key: String,
      rows: Iterator[(String, String)],
      state: GroupState[(String, String)]): Iterator[(String, String)] = {
    val (pad, before) = state.getOption.getOrElse(("", "0"))
    val all = rows.map(_._2).toSeq
    val now = ((pad +: all).max, (before.toInt + all.size).toString)
    state.update(now)
    Iterator((key, now._2))
  }

  /** Spark's own and this one. */
  private val Providers = Seq(
    classOf[RocksDBStateStoreProvider].getName,
    classOf[RedisStateStoreProvider].getName)
}
