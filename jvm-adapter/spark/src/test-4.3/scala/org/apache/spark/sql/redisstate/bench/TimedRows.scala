package org.apache.spark.sql.redisstate.bench

import java.util
import java.util.concurrent.TimeUnit.MILLISECONDS
import java.util.concurrent.locks.LockSupport

import scala.jdk.CollectionConverters._

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read.{
  InputPartition,
  PartitionReader,
  PartitionReaderFactory,
  Scan,
  ScanBuilder
}
import org.apache.spark.sql.connector.read.streaming.{
  MicroBatchStream,
  Offset,
  PartitionOffset,
  SupportsRealTimeMode,
  SupportsRealTimeRead
}
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead.RecordStatus
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * A real-time source of one partition whose rows `k long, r long` are due at fixed times: row r
 * when its [[LatencyLane]] says so, however late it is read. Spark's in-memory source looks for
 * rows every 10 ms, so it cannot measure less.
 *
 * Options: `lane`, the name of the lane; `keys`, the number of keys; `until`, the first row that
 * never comes. The first rows have each key once, the later ones keys in a fixed order.
 */
class TimedRows extends TableProvider {
  override def inferSchema(options: CaseInsensitiveStringMap): StructType = TimedRows.Schema

  override def getTable(
      schema: StructType,
      partitioning: Array[Transform],
      properties: util.Map[String, String]): Table = new TimedTable
}

private object TimedRows {
  val Schema: StructType = StructType.fromDDL("k long, r long")

  /** A prime, so that rows of a lap over the keys do not come in the order of the keys. */
  private val Stride = 2654435761L

  def keyOf(row: Long, keys: Long): Long = if (row < keys) row else row * Stride % keys
}

private final class TimedTable extends Table with SupportsRead {
  override def name(): String = "timed rows"
  override def schema(): StructType = TimedRows.Schema
  override def capabilities(): util.Set[TableCapability] =
    Set(TableCapability.MICRO_BATCH_READ).asJava

  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () =>
    new Scan {
      override def readSchema(): StructType = TimedRows.Schema
      override def toMicroBatchStream(checkpoint: String): MicroBatchStream =
        new TimedStream(
          options.get("lane"),
          options.get("keys").toLong,
          options.get("until").toLong)
    }
}

private final case class RowOffset(row: Long) extends Offset {
  override def json(): String = row.toString
}

private final case class RowPartitionOffset(row: Long) extends PartitionOffset

private final case class TimedPartition(lane: String, keys: Long, first: Long, until: Long)
    extends InputPartition

private final class TimedStream(lane: String, keys: Long, until: Long)
    extends MicroBatchStream
    with SupportsRealTimeMode {
  override def initialOffset(): Offset = RowOffset(0)
  override def latestOffset(): Offset = RowOffset(until)
  override def deserializeOffset(json: String): Offset = RowOffset(json.toLong)
  override def commit(end: Offset): Unit = ()
  override def stop(): Unit = ()

  override def planInputPartitions(start: Offset): Array[InputPartition] = {
    val first = rowOf(start)
    LatencyLane.of(lane).begin(first)
    Array(TimedPartition(lane, keys, first, until))
  }

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    Array(TimedPartition(lane, keys, rowOf(start), rowOf(end)))

  override def mergeOffsets(offsets: Array[PartitionOffset]): Offset =
    offsets match {
      case Array(RowPartitionOffset(row)) => RowOffset(row)
      case _ => throw new IllegalArgumentException(s"one partition, not ${offsets.length}")
    }

  override def createReaderFactory(): PartitionReaderFactory = TimedReaders

  private def rowOf(offset: Offset): Long = offset.json().toLong
}

private object TimedReaders extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    partition match {
      case timed: TimedPartition => new TimedReader(timed)
      case other => throw new IllegalArgumentException(s"not a partition of timed rows: $other")
    }
}

/** Reads rows when they are due; with `next` those up to an end, at once. */
private final class TimedReader(partition: TimedPartition)
    extends SupportsRealTimeRead[InternalRow] {
  private val lane = LatencyLane.of(partition.lane)
  private var row = partition.first - 1

  override def next(): Boolean = {
    val hasNext = row + 1 < partition.until
    if (hasNext) row += 1
    hasNext
  }

  override def nextWithTimeout(startMs: java.lang.Long, timeoutMs: java.lang.Long): RecordStatus = {
    val end = System.nanoTime() + MILLISECONDS.toNanos(timeoutMs)
    val isDue = waitFor(if (row + 1 < partition.until) lane.dueNanos(row + 1) else end, end)
    if (isDue && row + 1 < partition.until) {
      row += 1
      RecordStatus.newStatusWithoutArrivalTime(true)
    } else RecordStatus.newStatusWithoutArrivalTime(false)
  }

  override def get(): InternalRow = InternalRow(TimedRows.keyOf(row, partition.keys), row)
  override def getOffset(): PartitionOffset = RowPartitionOffset(row + 1)
  override def close(): Unit = ()

  /** Returns whether the time came before the end. */
  private def waitFor(due: Long, end: Long): Boolean = {
    val task = TaskContext.get()
    var left = math.min(due, end) - System.nanoTime()
    while (left > 0) {
      task.killTaskIfInterrupted()
      LockSupport.parkNanos(math.min(left, TimedReader.LongestParkNanos))
      left = math.min(due, end) - System.nanoTime()
    }
    due < end
  }
}

private object TimedReader {

  /** After so long a reader looks whether its task was cancelled. */
  private val LongestParkNanos = MILLISECONDS.toNanos(50)
}
