package org.apache.spark.sql.redisstate.bench

import java.lang.management.ManagementFactory
import java.nio.file.Paths
import java.util.concurrent.{Callable, Executors}

import scala.collection.mutable.ArrayBuffer
import scala.io.Source
import scala.jdk.CollectionConverters._
import scala.util.Random

import com.sun.management.OperatingSystemMXBean
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.SparkSession

/**
 * Providers of many queries on one server, without queries of Spark: `FleetBench URL FOLDER QUERIES
 * PARTITIONS ROWS UPDATES`.
 *
 * A line on standard input names a step and how much of it, such as `saturate 20`. Its answer is
 * one line of JSON on standard output: the times of each batch of a store, the mean of its query's,
 * with the processor time of this process.
 */
object FleetBench {
  private val Threads = 2
  private val ProviderClass = "org.apache.spark.sql.redisstate.RedisStateStoreProvider"
  private val SecondNs = 1000000000L

  def main(args: Array[String]): Unit = {
    if (args.length != 6) throw new IllegalArgumentException("six arguments, see above")
    val numbers = args.drop(2).map(_.toInt)
    val (queries, partitions) = (numbers(0), numbers(1))
    val spark = SparkSession.builder().master(s"local[$Threads]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    val conf = Map("spark.sql.streaming.stateStore.redis.url" -> args(0))
    val folder = Paths.get(args(1))
    val lanes = Vector.tabulate(queries)(number =>
      new BenchLane(s"query-$number", ProviderClass, conf, folder, partitions))
    val fleet = new Fleet(lanes, partitions, rows = numbers(2), updates = numbers(3))
    try Source.stdin.getLines().foreach(line => println(fleet.step(line.split(' '))))
    finally {
      lanes.foreach(_.close())
      fleet.close()
      spark.stop()
    }
  }

  private final class Fleet(lanes: Vector[BenchLane], partitions: Int, rows: Int, updates: Int) {
    private val system =
      ManagementFactory.getOperatingSystemMXBean.asInstanceOf[OperatingSystemMXBean]
    private val pool = Executors.newFixedThreadPool(Threads)
    private val all = Array.tabulate(rows * partitions)(_.toLong)
    private val shares = lanes.zipWithIndex.groupMap(_._2 % Threads)(_._1).values.toVector

    def step(words: Array[String]): String = {
      val amount = words(1).toInt
      val (began, cpu) = (System.nanoTime(), system.getProcessCpuTime)
      val works = shares.map { own =>
        new Callable[Done] {
          override def call(): Done = words(0) match {
            case "fill" => fill(own, amount)
            case "each-second" => eachSecond(own, amount)
            case "saturate" => saturate(own, amount)
            case other => throw new IllegalArgumentException(s"there is no step '$other'")
          }
        }
      }
      val done = pool.invokeAll(works.asJava).asScala.map(_.get()).toList
      compact(
        render(
          ("storeNs" -> done.flatMap(_.storeNs)) ~
            ("late" -> done.map(_.late).sum * partitions) ~
            ("cpuNs" -> (system.getProcessCpuTime - cpu)) ~
            ("passedNs" -> (System.nanoTime() - began))))
    }

    def close(): Unit = pool.shutdown()

    private def fill(own: Seq[BenchLane], batches: Int): Done = {
      val done = new Done
      own.foreach(_.batch(all))
      (1 until batches).foreach(_ => own.foreach(done.add))
      done
    }

    /** Runs a batch of each query in each second, evenly spread. */
    private def eachSecond(own: Seq[BenchLane], seconds: Int): Done = {
      val (done, began) = (new Done, System.nanoTime())
      for (turn <- 0 until seconds; (lane, number) <- own.zipWithIndex) {
        val wait = began + turn * SecondNs + number * SecondNs / own.size - System.nanoTime()
        if (wait > 0) Thread.sleep(wait / 1000000, (wait % 1000000).toInt)
        if (wait < -SecondNs) done.late += 1 else done.add(lane)
      }
      done
    }

    private def saturate(own: Seq[BenchLane], seconds: Int): Done = {
      val (done, end) = (new Done, System.nanoTime() + seconds * SecondNs)
      var number = 0
      while (System.nanoTime() < end) {
        done.add(own(number))
        number = (number + 1) % own.size
      }
      done
    }

    /** Batches of one thread. */
    private final class Done {
      private val random = new Random(1)
      val storeNs: ArrayBuffer[Long] = ArrayBuffer.empty
      var late = 0

      def add(lane: BenchLane): Unit = {
        val took = lane.batch(Array.fill(updates * partitions)(all(random.nextInt(all.length))))
        val each = (took.openNs + took.updateNs + took.commitNs) / partitions
        (0 until partitions).foreach(_ => storeNs += each)
      }
    }
  }
}
