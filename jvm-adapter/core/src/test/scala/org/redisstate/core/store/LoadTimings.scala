package org.redisstate.core.store

import java.lang.management.ManagementFactory
import java.nio.ByteBuffer

import scala.collection.mutable.ArrayBuffer
import scala.util.{Random, Using}

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice

/**
 * Prints what it takes to open a version and read all of its rows, without Spark, by the number of
 * deltas above its snapshot: `java -cp <test class path> org.redisstate.core.store.LoadTimings
 * [loads [deltas,…]]`. The loads take turns. A version has 250,000 rows of 58 bytes; each delta
 * changes 12,500 of them.
 */
object LoadTimings {
  private val Rows = 250000
  private val Changes = 12500
  private val KeyBytes = 18
  private val ValueBytes = 40
  private val os = ManagementFactory.getOperatingSystemMXBean
    .asInstanceOf[com.sun.management.OperatingSystemMXBean]

  /** Nanoseconds until the version is open, and until all rows were read; CPU of the process. */
  private final case class Load(open: Long, whole: Long, cpu: Long)

  private final class Lane(server: RedisServerProcess, val deltas: Int) extends AutoCloseable {
    private val partition = new TestPartition(server)
    private val random = new Random(1)
    private val loads = ArrayBuffer.empty[Load]
    private val version = filled()

    private def filled(): Long = {
      val store = partition.store("run")
      var version = batch(store, 0, (0 until Rows).iterator.map(_.toLong))
      store.open(version)
      store.requestSnapshot()
      require(store.snapshotIfDue())
      for (_ <- 0 until deltas)
        version = batch(store, version, Iterator.fill(Changes)(random.nextInt(Rows).toLong))
      store.close()
      version
    }

    /** Spark has the bytes of a number in the order of the machine. */
    private def batch(store: PartitionVersions, version: Long, ids: Iterator[Long]): Long = {
      val key = new Array[Byte](KeyBytes)
      val value = new Array[Byte](ValueBytes)
      val session = store.open(version).write()
      ids.foreach { id =>
        ByteBuffer.wrap(key).putLong(10, java.lang.Long.reverseBytes(id))
        ByteBuffer.wrap(value).putLong(8, id * 3).putLong(16, version).putLong(32, version)
        session.put(key, KeyBytes, value, ValueBytes)
      }
      session.commit().version
    }

    def load(): Unit = {
      val (cpu, start) = (os.getProcessCpuTime, System.nanoTime())
      val store = partition.store("reader")
      val version = store.open(this.version)
      val opened = System.nanoTime()
      val rows = version.iterator(0)
      val key, value = new Slice
      var seen = 0
      while (rows.next(key, value)) seen += 1
      require(seen == Rows, s"$seen rows of $Rows")
      val end = System.nanoTime()
      store.close()
      loads += Load(opened - start, end - start, os.getProcessCpuTime - cpu)
    }

    def print(): Unit = {
      val warm = loads.drop(loads.size / 3)
      def median(of: Load => Long) = warm.map(of).sorted.apply(warm.size / 2) / 1e6
      val cpu = warm.map(_.cpu).sum / 1e6 / warm.size
      println(
        f"$deltas%3d deltas: open ${median(_.open)}%6.1f ms, all rows ${median(_.whole)}%6.1f ms " +
          f"(best ${warm.map(_.whole).min / 1e6}%6.1f), CPU of the process $cpu%6.1f ms")
    }

    override def close(): Unit = partition.close()
  }

  def main(args: Array[String]): Unit = {
    val loads = args.headOption.fold(45)(_.toInt)
    val deltas = args.lift(1).fold(Seq(0, 5, 10))(_.split(',').map(_.toInt).toSeq)
    Using.Manager { use =>
      val server = use(new RedisServerProcess())
      val lanes = deltas.map(n => use(new Lane(server, n)))
      for (_ <- 0 until loads) lanes.foreach(_.load())
      lanes.foreach(_.print())
    }.get
  }
}
