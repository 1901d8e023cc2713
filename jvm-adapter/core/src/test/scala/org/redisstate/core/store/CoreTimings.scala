package org.redisstate.core.store

import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.util.concurrent.{Callable, Executors}
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice

/**
 * Prints what the core's operations take, without Spark: `java -cp <test class path>
 * org.redisstate.core.store.CoreTimings [stores [rows]]`. That many stores, of that many rows each,
 * open, change and commit at the same time, as the tasks of a batch do. Rows are 32-byte keys and
 * 24-byte values that compress little.
 */
object CoreTimings {
  private val KeyBytes = 32
  private val ValueBytes = 24
  private val TinyRows = 10
  private val Threads = 2

  /** Times of one batch in one store, in nanoseconds; CPU time is that of the task's thread. */
  private final case class Batch(open: Long, update: Long, commit: Long, cpu: Long)

  /** Times of loading one store, in nanoseconds; CPU time is that of the process. */
  private final case class Load(open: Long, whole: Long, cpu: Long)

  private val os = ManagementFactory.getOperatingSystemMXBean
    .asInstanceOf[com.sun.management.OperatingSystemMXBean]

  private final class Lane(val partition: TestPartition, rows: Int, seed: Int) {
    private val random = new Random(seed.toLong)
    private val key = new Array[Byte](KeyBytes)
    private val value = new Array[Byte](ValueBytes)
    private val found = new Slice
    var store: PartitionVersions = partition.store("run")
    var version = 0L

    def fill(): Unit = update(rows, i => i.toLong)

    def batch(changes: Int): Batch = update(changes, _ => random.nextInt(rows).toLong)

    private def update(changes: Int, id: Int => Long): Batch = {
      val start = System.nanoTime()
      val session = store.open(version).write()
      val opened = System.nanoTime()
      (0 until changes).foreach { i =>
        setKey(id(i))
        session.get(key, KeyBytes, found)
        ByteBuffer.wrap(value).putLong(0, random.nextLong()).putLong(8, version)
        session.put(key, KeyBytes, value, ValueBytes)
      }
      val updated = System.nanoTime()
      val before = cpuNs()
      version = session.commit().version
      Batch(opened - start, updated - opened, System.nanoTime() - updated, cpuNs() - before)
    }

    private def setKey(id: Long): Unit = {
      val bytes = ByteBuffer.wrap(key)
      bytes.putLong(8, id * 0x9e3779b97f4a7c15L).putLong(24, id)
      ()
    }

    /** Nanoseconds until the version is open, and until all its rows were seen. */
    def coldRead(): (Long, Long) = {
      val start = System.nanoTime()
      val opened = partition.store("run").open(version)
      val open = System.nanoTime() - start
      val all = opened.iterator(0)
      val k, v = new Slice
      var seen = 0
      while (all.next(k, v)) seen += 1
      require(seen == rows, s"$seen rows of $rows")
      (open, System.nanoTime() - start)
    }
  }

  def main(args: Array[String]): Unit = {
    val stores = args.headOption.fold(4)(_.toInt)
    val rows = args.lift(1).fold(250000)(_.toInt)
    val server = new RedisServerProcess()
    val workers = Executors.newFixedThreadPool(Threads)
    val count = new AtomicInteger
    val lanes =
      Seq.fill(stores)(new Lane(new TestPartition(server), rows, count.incrementAndGet()))

    def all[A](work: Lane => A): Seq[A] =
      workers.invokeAll(lanes.map(l => (() => work(l)): Callable[A]).asJava).asScala.map(
        _.get).toSeq

    try {
      all(_.fill())
      lanes.foreach(_.store.snapshotIfDue())
      println(s"$stores stores of $rows rows, $Threads tasks at a time; medians")
      Seq((TinyRows, 400), (TinyRows, 400), (rows / 20, 30), (rows / 20, 30)).foreach {
        case (changes, batches) =>
          val local = mutable.ArrayBuffer.empty[Long]
          val before = os.getProcessCpuTime
          val found = (0 until batches).flatMap { b =>
            val times = all(_.batch(changes))
            local += lanes.map(_.store.localBytes).sum
            if (b % 10 == 9) all(l => { l.store.open(l.version); l.store.snapshotIfDue() })
            times
          }
          printBatches(changes, found.drop(found.size / 4))
          val cpu = (os.getProcessCpuTime - before) / 1e6 / found.size
          val row = median(local.toSeq) / rows / stores
          println(f"       CPU of the process, maintenance included, $cpu%8.3f ms; local memory $row%6.1f bytes a row")
      }
      all(_.batch(rows / 20))
      printLoads((0 until 12).flatMap { _ =>
        val before = os.getProcessCpuTime
        val times = all(_.coldRead())
        val cpu = (os.getProcessCpuTime - before) / stores
        times.map { case (open, whole) => Load(open, whole, cpu) }
      })
      printMemory(lanes, rows)
    } finally {
      workers.shutdownNow()
      lanes.foreach(_.partition.close())
      server.close()
    }
  }

  private def printBatches(changes: Int, found: Seq[Batch]): Unit = {
    val open = median(found.map(_.open)) / 1e6
    val commit = median(found.map(_.commit)) / 1e6
    val both = median(found.map(b => b.open + b.commit)) / 1e6
    val row = median(found.map(_.update)) / 1e3 / changes
    val cpu = median(found.map(_.cpu)) / 1e6
    println(
      f"$changes%6d rows: open $open%8.3f ms, commit $commit%8.3f ms (CPU $cpu%6.3f), " +
        f"both $both%8.3f ms, get + put $row%6.3f µs a row")
  }

  private def printLoads(found: Seq[Load]): Unit = {
    val warm = found.drop(found.size / 4)
    println(
      f"a new store: open ${median(warm.map(_.open)) / 1e6}%8.2f ms (best ${warm.map(_.open).min / 1e6}%8.2f), " +
        f"until all rows were read ${median(warm.map(_.whole)) / 1e6}%8.2f ms " +
        f"(best ${warm.map(_.whole).min / 1e6}%8.2f), CPU of the process ${median(warm.map(_.cpu)) / 1e6}%8.2f ms")
  }

  private def printMemory(lanes: Seq[Lane], rows: Int): Unit = {
    val counted = lanes.map(_.store.localBytes).sum.toDouble / rows / lanes.size
    val before = heapBytes()
    lanes.foreach { lane =>
      lane.store.close()
      lane.store = null
    }
    val retained = (before - heapBytes()).toDouble / rows / lanes.size
    println(f"memory: $counted%6.1f bytes a row counted, $retained%6.1f retained")
  }

  private def cpuNs(): Long = ManagementFactory.getThreadMXBean.getCurrentThreadCpuTime

  private def heapBytes(): Long = {
    val memory = ManagementFactory.getMemoryMXBean
    (0 until 3).foreach(_ => memory.gc())
    memory.getHeapMemoryUsage.getUsed
  }

  private def median(values: Seq[Long]): Double = values.sorted.apply(values.size / 2).toDouble
}
