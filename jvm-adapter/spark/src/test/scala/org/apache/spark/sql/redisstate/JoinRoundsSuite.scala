package org.apache.spark.sql.redisstate

import java.nio.file.{Files, Path}

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.{DataFrame, Dataset, Row}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.functions.{col, count, expr, max}
import org.apache.spark.sql.redisstate.checkpoint.SteppedFileSystem
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.streaming.Trigger

/** Reads of files that operators wait for one after the other, where all of their state is in files. */
class JoinRoundsSuite extends AnyFunSuite with SessionOnServer {
  import JoinRoundsSuite._

  override protected def settings: Map[String, String] =
    SteppedFileSystem.settings.map { case (name, value) =>
      (if (name.startsWith("fs.")) s"spark.hadoop.$name" else name) -> value
    } ++ Map(
      "spark.sql.shuffle.partitions" -> "1",
      "spark.sql.streaming.noDataMicroBatches.enabled" -> "false",
      RedisStateConf.Prefix + "versionsToRetain" -> "2",
      "spark.sql.streaming.minBatchesToRetain" -> "2",
      RedisStateConf.Prefix + "localMemory" -> "12m",
      "spark.sql.streaming.stateStore.providerClass" -> classOf[RedisStateStoreProvider].getName,
      "spark.sql.streaming.stateStore.maintenanceInterval" -> "200ms"
    )

  /** A query over two folders, whose state grows until it is in files. */
  private final class Scene(build: Build, stores: Int, mode: String) {
    private val folders = Seq.fill(2)(Files.createTempDirectory("events"))
    private val checkpoint = s"names:${Files.createTempDirectory("checkpoint")}"
    private var number = 0
    var found = 0L
    StateStore.stop()
    spark.conf.set(RedisStateConf.Prefix + "redisMemory", s"${1088 * stores}k")

    private def stream(folder: Path): DataFrame =
      spark.readStream.schema("k string, pad string, at timestamp")
        .option("maxFilesPerTrigger", 1).json(folder.toString).withWatermark("at", "1 minute")

    /** Adds a batch of keys for each side. */
    def feed(left: Seq[Int], right: Seq[Int]): Unit = {
      Seq(left, right).zip(folders).foreach { case (keys, folder) =>
        add(
          folder,
          number,
          keys.map(i =>
            f"""{"k":"k$i","pad":"${pads(i)}","at":"2024-01-01T10:$number%02d:00Z"}"""))
      }
      number += 1
    }

    /** Runs what was fed, and counts the rows that come out. */
    def run(): Unit = {
      found = 0L
      build(stream(folders.head), stream(folders.last)).writeStream
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .foreachBatch { (batch: Dataset[Row], _: Long) => found += batch.count() }
        .trigger(Trigger.AvailableNow())
        .start()
        .awaitTermination()
    }

    /** Runs a batch of a new executor; returns the rounds that it took. */
    def roundsOf(left: Seq[Int], right: Seq[Int]): Rounds = {
      StateStore.stop()
      feed(left, right)
      val rounds = new Rounds
      SteppedFileSystem.step = rounds.step
      try run()
      finally SteppedFileSystem.step = _ => ()
      rounds
    }
  }

  private val all = new Random(3).shuffle((0 until Keys).toList)
  private val cold = all.take(1000)

  private def filled(build: Build, stores: Int, mode: String): Scene = {
    val scene = new Scene(build, stores, mode)
    all.grouped(Keys / 8).foreach(keys => scene.feed(keys, keys.take(1)))
    scene.run()
    scene
  }

  test("1,000 cold rows of a join take about as many rounds as those of an aggregation") {
    val counts: Build = (left, right) =>
      left.unionByName(right).groupBy("k").agg(max("pad"), count("*"))
    val ofCounts = filled(counts, stores = 1, "update").roundsOf(Seq(0), cold)
    val scene = filled(joined("inner", ""), stores = 4, "append")
    val ofJoin = scene.roundsOf(Seq(0), cold)
    info(s"aggregation: $ofCounts; join: $ofJoin")
    assert(scene.found >= cold.size)
    assert(ofCounts.rounds * 4 < cold.size)
    assert(ofJoin.rounds < 2 * ofCounts.rounds + 40 && ofJoin.rounds * 4 < cold.size)
    assert(ofJoin.mostAtOnce > 4)
  }

  test("a join by time reads all of its rows for a removal in ranges, many at once") {
    val near = "and a.at between b.at - interval 50 minutes and b.at + interval 50 minutes"
    val scene = filled(joined("inner", near), stores = 4, "append")
    scene.roundsOf(Seq(0), cold)
    val removal = scene.roundsOf(Seq(0), Seq(1))
    info(s"removal among $Keys rows: $removal")
    assert(removal.reads * 4 < Keys && removal.rounds * 8 < Keys)
    assert(removal.mostAtOnce > 8)
  }
}

private object JoinRoundsSuite {
  private type Build = (DataFrame, DataFrame) => DataFrame
  private val Keys = 8000
  private val pads = {
    val dice = new Random(5)
    Seq.fill(Keys)(dice.alphanumeric.take(700).mkString)
  }

  private def joined(how: String, near: String): Build = (left, right) =>
    left.as("a").join(right.as("b"), expr(s"a.k = b.k $near"), how)
      .select(col("a.k"), col("a.pad"), col("b.at"))

  /**
   * Reads of block files: how many one after the other, at least. A read that begins after another
   * one has ended is one round later. Background work is held up, and not counted.
   */
  private final class Rounds {
    private var running, most, ended, all = 0

    def rounds: Int = synchronized(ended)
    def reads: Int = synchronized(all)
    def mostAtOnce: Int = synchronized(most)

    override def toString: String = synchronized(s"$ended rounds, $all reads, $most at once")

    def step(name: String): Unit =
      if (name.startsWith("open ") && name.endsWith(".seg")) {
        if (Thread.currentThread.getName.startsWith("redis-state-background")) Thread.sleep(500)
        else {
          val round = synchronized {
            running += 1
            all += 1
            most = math.max(most, running)
            ended + 1
          }
          Thread.sleep(2)
          synchronized {
            running -= 1
            ended = math.max(ended, round)
          }
        }
      }
  }
}
