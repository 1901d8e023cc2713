package org.redisstate.core.store

import java.nio.ByteBuffer
import java.nio.file.Files
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._
import scala.reflect.io.Directory
import scala.util.Random

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice
import org.redisstate.core.places.LocalFiles

/**
 * Tasks that fill partitions side by side, as a migration does with every core of a machine. Their
 * rows cannot be compressed. Ends with 0 when every partition was committed. `java -Xmx… -cp <test
 * class path> org.redisstate.core.store.BoundedFill <tasks> <MiB each> [redis|files]`. With files,
 * partitions have a bound of 1 MiB, and all rows are counted again.
 */
object BoundedFill {
  private val ValueBytes = 100
  private val RowBytes = 120

  def main(args: Array[String]): Unit = {
    val tasks = args(0).toInt
    val mib = args(1).toInt
    val folder =
      Option.when(args.lift(2).contains("files"))(Files.createTempDirectory("filled"))
    val server = new RedisServerProcess()
    val workers = Executors.newFixedThreadPool(tasks)
    try {
      val all =
        Seq.tabulate(tasks)(n =>
          new TestPartition(server, number = n, folders = folder.map(new LocalFiles(_))))
      val beganNs = System.nanoTime()
      val rows = mib * (1 << 20) / RowBytes
      workers.invokeAll(all.map(p => (() => fill(p, rows)): Callable[Unit]).asJava).asScala.foreach(
        _.get)
      val seconds = (System.nanoTime() - beganNs) / 1000000000L
      val used = all.head.raw.info("memory").linesIterator.find(_.startsWith("used_memory_peak:"))
      println(s"$seconds s, ${used.getOrElse("")}")
      println(s"$tasks tasks filled $rows rows each, in a heap of ${Runtime.getRuntime.maxMemory}")
      all.foreach(_.close())
    } finally {
      workers.shutdownNow()
      server.close()
      folder.foreach(at => Directory(at.toFile).deleteRecursively())
    }
  }

  private def fill(partition: TestPartition, rows: Int): Unit = {
    val store = partition.store("run")
    if (partition.folders.nonEmpty) store.client.bindTo(1L << 20)
    val session = store.openEmpty(0).fill(None)
    val random = new Random(rows.toLong)
    val key = new Array[Byte](6)
    val value = new Array[Byte](ValueBytes)
    (0 until rows).foreach { row =>
      ByteBuffer.wrap(key).putShort(0).putInt(row)
      random.nextBytes(value)
      session.put(key, key.length, value, value.length)
    }
    val version = session.commit().version
    require(version == 1, s"version $version was committed")
    if (partition.folders.nonEmpty) count(partition, rows)
  }

  private def count(partition: TestPartition, rows: Int): Unit = {
    val found = partition.store("reader").openOnce(1, None).iterator(0)
    val key, value = new Slice
    var counted = 0
    while (found.next(key, value)) counted += 1
    require(counted == rows, s"$counted of $rows rows are there")
    require(!partition.keys.exists(_.startsWith("d:")), "blocks are in Redis")
  }
}
