package org.redisstate.core.store

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.collection.mutable

import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.RowBlock
import org.redisstate.core.local.Layer

/**
 * Rows on the local disk, given back by bucket: first the rows come, layer by layer, and only then
 * the number of buckets is known. The file has no name: it is gone with its process. For one thread.
 *
 * Each layer is written in the order of the last 20 bits of the hashes, so in that of the slices
 * that 12 of these bits number. The rows of up to 256 neighbouring buckets are whole slices.
 *
 * @param what the work, for errors
 * @param folder None for that of the process
 */
private[store] final class SpilledRows(what: String, folder: Option[Path]) extends AutoCloseable {
  import SpilledRows._

  private val channel = answered(opened(folder))
  private val buffer = ByteBuffer.allocate(BufferBytes)

  /** Begins of the slices of each layer, and the end of the last one. */
  private val layers = mutable.ArrayBuffer.empty[Array[Long]]
  private var at = 0L
  private var rowCount, byteCount = 0L

  def rows: Long = rowCount

  /** Bytes that the rows had in their layers. */
  def bytes: Long = byteCount

  /** Writes the rows of a layer. */
  def add(layer: Layer): Unit = answered {
    val order = layer.entries().map(entry =>
      ((layer.hashOf(entry) & HashMask).toLong << 32) | entry)
    java.util.Arrays.sort(order)
    val starts = new Array[Long](Slices + 1)
    var slice = 0
    order.foreach { one =>
      val of = (one >>> 32).toInt >>> SliceShift
      while (slice <= of) {
        starts(slice) = at + buffer.position()
        slice += 1
      }
      write(layer, one.toInt)
    }
    flush()
    while (slice <= Slices) {
      starts(slice) = at
      slice += 1
    }
    layers += starts
    rowCount += layer.rows
    byteCount += layer.usedBytes
  }

  /**
   * Calls back with the rows of each bucket in key order, in ascending order of buckets.
   *
   * @param buckets power of two
   */
  def foreachBucket(buckets: Int)(use: (Int, RowBlock) => Unit): Unit = {
    val atOnce = math.min(BucketsAtOnce, buckets)
    val parts = buckets / atOnce
    (0 until parts).foreach { part =>
      val first = part * atOnce
      val found = answered(read(part, parts, hash => (hash & (buckets - 1)) - first))
      found.foreachBucket(atOnce)((bucket, rows) => use(first + bucket, rows))
    }
  }

  /** Closes the file; never throws, since the version may be committed. */
  override def close(): Unit =
    try channel.close()
    catch { case _: IOException => () }

  /** Reads the slices of a part. The layer groups its rows by what `bucketOf` gives for a hash. */
  private def read(part: Int, parts: Int, bucketOf: Int => Int): Layer = {
    val slices = part until Slices by parts
    val bytes =
      layers.iterator.map(starts => slices.iterator.map(i => starts(i + 1) - starts(i)).sum).sum
    val found = new Layer(InitialRows, math.min(LayerBytesMax, bytes + bytes / 4).toInt)
    for {
      starts <- layers
      slice <- slices if starts(slice + 1) > starts(slice)
    } {
      val raw = new Array[Byte]((starts(slice + 1) - starts(slice)).toInt)
      readFully(ByteBuffer.wrap(raw), starts(slice))
      putAll(found, raw, bucketOf)
    }
    found
  }

  private def putAll(layer: Layer, raw: Array[Byte], bucketOf: Int => Int): Unit = {
    val rows = ByteBuffer.wrap(raw)
    while (rows.hasRemaining) {
      val hash = bucketOf(rows.getInt())
      val (keyLength, valueLength) = (rows.getInt(), rows.getInt())
      val key = rows.position()
      layer.put(hash, raw, key, keyLength, raw, key + keyLength, valueLength)
      rows.position(key + keyLength + valueLength)
    }
  }

  private def readFully(into: ByteBuffer, from: Long): Unit =
    while (into.hasRemaining) {
      if (channel.read(into, from + into.position()) < 0)
        throw new IOException("the file of spilled rows is cut")
    }

  private def write(layer: Layer, entry: Int): Unit = {
    val (keyLength, valueLength) = (layer.keyLength(entry), layer.valueLength(entry))
    if (buffer.remaining < HeadBytes) flush()
    buffer.putInt(layer.hashOf(entry)).putInt(keyLength).putInt(valueLength)
    put(layer.bytes, layer.keyOffset(entry), keyLength)
    put(layer.bytes, layer.valueOffset(entry), valueLength)
  }

  private def put(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    if (buffer.remaining < length) flush()
    if (buffer.remaining >= length) buffer.put(bytes, offset, length)
    else writeFully(ByteBuffer.wrap(bytes, offset, length))
  }

  private def flush(): Unit = {
    buffer.flip()
    writeFully(buffer)
    buffer.clear()
  }

  private def writeFully(from: ByteBuffer): Unit =
    while (from.hasRemaining) at += channel.write(from, at)

  private def answered[A](body: => A): A =
    try body
    catch {
      case e: IOException =>
        throw new UnavailableException(
          s"$what: its rows could not pass the local disk (${e.getMessage}). Nothing was committed. See that the disk of " +
            "spark.local.dir has room for the rows of all running tasks, then try again.",
          e
        )
    }
}

private object SpilledRows {
  private val BufferBytes = 1 << 20
  private val HeadBytes = 12
  private val HashBits = 20
  private val SliceBits = 12
  private val SliceShift = HashBits - SliceBits
  private val HashMask = (1 << HashBits) - 1
  private val Slices = 1 << SliceBits

  /** Buckets that the last bits of a hash tell apart in a slice. */
  private val BucketsAtOnce = 1 << SliceShift
  private val InitialRows = 1 << 14
  private val LayerBytesMax = 64L << 20

  private def opened(folder: Option[Path]): FileChannel = {
    val file = folder.fold(Files.createTempFile(Prefix, ""))(Files.createTempFile(_, Prefix, ""))
    FileChannel.open(
      file,
      StandardOpenOption.READ,
      StandardOpenOption.WRITE,
      StandardOpenOption.DELETE_ON_CLOSE)
  }

  private val Prefix = "redis-state-rows-"
}
