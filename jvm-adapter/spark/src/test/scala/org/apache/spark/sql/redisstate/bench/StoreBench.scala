package org.apache.spark.sql.redisstate.bench

import java.lang.management.ManagementFactory
import java.nio.file.{Files, Path, Paths}

import scala.collection.mutable.ArrayBuffer
import scala.util.Random

import com.sun.management.OperatingSystemMXBean
import org.json4s.{JField, JObject}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.SparkSession

/**
 * The state stores themselves, without queries: `StoreBench URL REDIS_PID FOLDER KEYS UPDATES
 * WARM_UP BATCHES`.
 *
 * Three providers do the same work in one JVM, in turns and in random order; then their states are
 * compared, and one line of JSON with the figures goes to standard output. CPU is the JVM's, its
 * background threads included, and the server's, each from the operating system.
 */
object StoreBench {
  private val Partitions = 4

  /** Batches that are reported by themselves: nothing that they run is compiled yet. */
  private val First = 20
  private val MaintainEvery = 10
  private val Loads = 5
  private val State = "org.apache.spark.sql.execution.streaming.state."

  def main(args: Array[String]): Unit = {
    if (args.length != 7) throw new IllegalArgumentException("seven arguments, see above")
    val numbers = args.drop(3).map(_.toInt)
    // Without a session RocksDB's provider finds no memory manager of an executor.
    val spark = SparkSession.builder().master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try {
      val folder = Paths.get(args(2))
      val work =
        new Work(args(0), args(1).toLong, folder, numbers(0), numbers(1), numbers(2), numbers(3))
      println(work.run())
    } finally spark.stop()
  }

  private final class Work(
      url: String,
      serverPid: Long,
      folder: Path,
      keys: Long,
      updates: Int,
      warmUp: Int,
      batches: Int) {
    private val system =
      ManagementFactory.getOperatingSystemMXBean.asInstanceOf[OperatingSystemMXBean]
    private val random = new Random(1)
    private val lanes = Seq(
      lane(
        "redis",
        "org.apache.spark.sql.redisstate.RedisStateStoreProvider",
        "spark.sql.streaming.stateStore.redis.url" -> url),
      lane("hdfs", State + "HDFSBackedStateStoreProvider"),
      lane(
        "rocksdb",
        State + "RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled" -> "true")
    )

    private def lane(name: String, providerClass: String, conf: (String, String)*): BenchLane =
      new BenchLane(name, providerClass, conf.toMap, folder, Partitions)

    def run(): String = {
      val all = Array.tabulate(keys.toInt)(_.toLong)
      lanes.foreach(_.batch(all))
      val times = lanes.map(_.name -> ArrayBuffer.empty[Times]).toMap
      val cpu = lanes.map(l => l.name -> Array(0L, 0L)).toMap
      for (number <- 0 until warmUp + batches) {
        val picked = Array.fill(updates)(random.nextLong(keys))
        random.shuffle(lanes).foreach { lane =>
          val (own, servers) = (system.getProcessCpuTime, serverTicks())
          val took = lane.batch(picked)
          if (number % MaintainEvery == 0) lane.maintain()
          times(lane.name) += took
          if (number >= warmUp) {
            cpu(lane.name)(0) += system.getProcessCpuTime - own
            cpu(lane.name)(1) += serverTicks() - servers
          }
        }
        System.err.print(s"\rbatch ${number + 1} of ${warmUp + batches}")
      }
      System.err.println()
      val digests = lanes.map(l => l.name -> l.digest())
      if (digests.map(_._2).distinct.size != 1)
        throw new IllegalStateException(s"the providers disagree: $digests")
      val loads = lanes.map(_.name -> ArrayBuffer.empty[Load]).toMap
      (0 until Loads).foreach(_ => random.shuffle(lanes).foreach(l => loads(l.name) += l.reload()))
      val heaps = lanes.map(l => l.name -> heap(l)).toMap
      val figures = lanes.map { lane =>
        val name = lane.name
        val (first, measured) = (times(name).take(First), times(name).drop(warmUp))
        JField(
          name,
          ("openNs" -> measured.map(_.openNs).toList) ~
            ("updateNs" -> measured.map(_.updateNs).toList) ~
            ("commitNs" -> measured.map(_.commitNs).toList) ~
            ("firstNs" -> first.map(t => t.openNs + t.commitNs).toList) ~
            ("loadOpenNs" -> loads(name).map(_.openNs).toList) ~
            ("loadReadNs" -> loads(name).map(_.readNs).toList) ~
            ("cpuNs" -> cpu(name)(0)) ~
            ("serverTicks" -> cpu(name)(1)) ~
            ("heapBytes" -> heaps(name)) ~
            ("rows" -> digests.head._2._1)
        )
      }
      compact(render(JObject(figures.toList)))
    }

    /** Heap that goes when a lane ends: two versions of its state, each row read once. */
    private def heap(lane: BenchLane): Long = {
      lane.reload()
      lane.batch(Array.fill(updates)(random.nextLong(keys)))
      lane.batch(Array.fill(updates)(random.nextLong(keys)))
      val held = used()
      lane.close()
      held - used()
    }

    private def used(): Long = {
      (0 until 3).foreach { _ =>
        System.gc()
        Thread.sleep(200)
      }
      ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
    }

    /** User and system time of the server, in clock ticks (10 ms); Linux. */
    private def serverTicks(): Long = {
      val stat = Files.readString(Paths.get(s"/proc/$serverPid/stat"))
      val fields = stat.substring(stat.lastIndexOf(')') + 2).split(' ')
      fields(11).toLong + fields(12).toLong
    }
  }
}
