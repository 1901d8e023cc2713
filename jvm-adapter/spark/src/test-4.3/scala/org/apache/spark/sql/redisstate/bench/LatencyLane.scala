package org.apache.spark.sql.redisstate.bench

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}
import java.util.concurrent.TimeUnit.SECONDS

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{ForeachWriter, Row}

/**
 * Times of the rows of one query, in a JVM that is driver and executor: when each is due, and how
 * late it came to the sink.
 *
 * A run begins when Spark plans its first batch. Row r of a run that began with row b is due
 * (r - b) / rate after that, whatever happens to the rows before it; a rate of 0 makes all due at
 * once.
 */
final class LatencyLane private (name: String) {
  @volatile private var rate = 0L
  @volatile private var run: Option[LatencyLane.Run] = None
  private val late = new ConcurrentLinkedQueue[Array[Long]]

  /** Forgets the last run; the next one has so many rows a second. */
  def reset(rowsPerSecond: Long): Unit = {
    rate = rowsPerSecond
    run = None
    late.clear()
  }

  /** Begins a run, unless it has begun. */
  def begin(row: Long): Unit = synchronized {
    if (run.isEmpty) run = Some(LatencyLane.Run(row, System.nanoTime()))
  }

  def dueNanos(row: Long): Long = {
    val LatencyLane.Run(first, began) =
      run.getOrElse(throw new IllegalStateException(s"no run of lane $name"))
    if (rate == 0) began else began + (row - first) * SECONDS.toNanos(1) / rate
  }

  def add(rowsAndNanos: Array[Long]): Unit = late.add(rowsAndNanos): Unit

  /**
   * Writes what the sink has seen of this run: for each row its number from the run's first, and
   * its latency in ns.
   */
  def write(file: String): Unit = {
    val first = run.fold(0L)(_.first)
    val all = late.asScala.toArray
    val bytes = ByteBuffer.allocate(all.map(_.length).sum * java.lang.Long.BYTES)
    bytes.order(ByteOrder.LITTLE_ENDIAN)
    all.foreach(_.grouped(2).foreach { pair =>
      bytes.putLong(pair(0) - first).putLong(pair(1))
    })
    Files.write(Paths.get(file): Path, bytes.array()): Unit
  }
}

object LatencyLane {
  private final case class Run(first: Long, beganNanos: Long)

  private val lanes = new ConcurrentHashMap[String, LatencyLane]

  def of(name: String): LatencyLane = lanes.computeIfAbsent(name, new LatencyLane(_))
}

/** Sink that records how late each row comes; the last column of a row is the number of the source's. */
final class LatencySink(lane: String) extends ForeachWriter[Row] {
  @transient private var seen: mutable.ArrayBuilder.ofLong = _

  override def open(partition: Long, epoch: Long): Boolean = {
    seen = new mutable.ArrayBuilder.ofLong
    true
  }

  override def process(row: Row): Unit = {
    val number = row.getLong(row.length - 1)
    seen.addOne(number)
    seen.addOne(System.nanoTime() - LatencyLane.of(lane).dueNanos(number)): Unit
  }

  override def close(error: Throwable): Unit =
    if (error == null) LatencyLane.of(lane).add(seen.result())
}
