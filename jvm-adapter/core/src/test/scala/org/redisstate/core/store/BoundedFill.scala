package org.redisstate.core.store

import java.nio.ByteBuffer
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._
import scala.util.Random

import org.redisstate.core.RedisServerProcess

/**
 * Tasks that fill partitions side by side, as a migration does with every core of a machine. Their
 * rows cannot be compressed. Ends with 0 when every partition was committed. `java -Xmx… -cp <test
 * class path> org.redisstate.core.store.BoundedFill <tasks> <MiB each>`.
 */
object BoundedFill {
  private val ValueBytes = 100
  private val RowBytes = 120

  def main(args: Array[String]): Unit = {
    val tasks = args(0).toInt
    val mib = args(1).toInt
    val server = new RedisServerProcess()
    val workers = Executors.newFixedThreadPool(tasks)
    try {
      val all = Seq.tabulate(tasks)(n => new TestPartition(server, number = n))
      val rows = mib * (1 << 20) / RowBytes
      workers.invokeAll(all.map(p => (() => fill(p, rows)): Callable[Unit]).asJava).asScala.foreach(
        _.get)
      println(s"$tasks tasks filled $rows rows each, in a heap of ${Runtime.getRuntime.maxMemory}")
      all.foreach(_.close())
    } finally {
      workers.shutdownNow()
      server.close()
    }
  }

  private def fill(partition: TestPartition, rows: Int): Unit = {
    val session = partition.store("run").openEmpty(0).fill(None)
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
  }
}
