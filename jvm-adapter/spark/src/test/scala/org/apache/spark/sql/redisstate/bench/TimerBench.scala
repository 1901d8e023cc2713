package org.apache.spark.sql.redisstate.bench

import java.nio.file.{Path, Paths}

import scala.collection.mutable.ArrayBuffer

import org.json4s.{JField, JObject}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.SparkSession

/**
 * Timers of a `transformWithState`, without queries: `TimerBench URL FOLDER TIMERS FIRED BATCHES`.
 *
 * Our provider and RocksDB's with change log do the same work in turns; which timers fire, and in
 * which order, has to be equal. One line of JSON with the figures goes to standard output.
 */
object TimerBench {

  /** Number of batches until the JVM has compiled their code; a real query runs for days. */
  private val WarmUp = 1000
  private val MaintainEvery = 10
  private val Loads = 5

  def main(args: Array[String]): Unit = {
    if (args.length != 5) throw new IllegalArgumentException("five arguments, see above")
    val numbers = args.drop(2).map(_.toInt)
    // Without a session RocksDB's provider finds no memory manager of an executor.
    val spark = SparkSession.builder().master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try println(run(lanes(args(0), Paths.get(args(1)), numbers(0)), numbers(1), numbers(2)))
    finally spark.stop()
  }

  private def lanes(url: String, folder: Path, timers: Int): Seq[TimerLane] = Seq(
    new TimerLane(
      "redis",
      "org.apache.spark.sql.redisstate.RedisStateStoreProvider",
      Map("spark.sql.streaming.stateStore.redis.url" -> url),
      folder,
      timers),
    new TimerLane(
      "rocksdb",
      "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
      Map("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled" -> "true"),
      folder,
      timers
    )
  )

  private def run(lanes: Seq[TimerLane], fired: Int, batches: Int): String = {
    lanes.foreach(_.fill())
    lanes.foreach(_.maintain())
    val found = lanes.map(_.name -> ArrayBuffer.empty[TimerBatch]).toMap
    for (number <- 0 until WarmUp + batches) {
      val turn = inTurn(lanes, number).map(lane => lane -> lane.batch(fired))
      same(turn.map { case (lane, batch) => lane.name -> batch.fired }, fired)
      turn.foreach { case (lane, batch) =>
        if (number % MaintainEvery == 0) lane.maintain()
        if (number >= WarmUp) found(lane.name) += batch
      }
    }
    val loads = lanes.map(_.name -> ArrayBuffer.empty[Long]).toMap
    for (number <- 0 until Loads) {
      val turn = inTurn(lanes, number).map(lane => lane -> lane.reload(fired))
      same(turn.map { case (lane, (_, first)) => lane.name -> first }, fired)
      turn.foreach { case (lane, (took, _)) => loads(lane.name) += took }
    }
    lanes.foreach(_.close())
    val figures = lanes.map { lane =>
      val all = found(lane.name).toList
      JField(
        lane.name,
        ("batchNs" -> all.map(_.batchNs)) ~ ("scanNs" -> all.map(_.scanNs)) ~
          ("openCommitNs" -> all.map(b => b.openNs + b.commitNs)) ~
          ("loadNs" -> loads(lane.name).toList)
      )
    }
    compact(render(JObject(figures.toList)))
  }

  private def inTurn(lanes: Seq[TimerLane], number: Int): Seq[TimerLane] =
    if (number % 2 == 0) lanes else lanes.reverse

  private def same(timers: Seq[(String, Seq[(String, Long)])], count: Int): Unit =
    if (timers.map(_._2).distinct.size != 1 || timers.head._2.size != count)
      throw new IllegalStateException(s"not the same $count timers: $timers")
}
