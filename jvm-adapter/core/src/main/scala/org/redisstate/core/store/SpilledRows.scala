package org.redisstate.core.store

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.collection.mutable

import org.redisstate.core.errors.{LimitException, UnavailableException}
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
 * @param partBytes so many bytes of several buckets are in memory at most
 * @param bucketBytes the same of one bucket
 */
private[store] final class SpilledRows(
    what: String,
    folder: Option[Path],
    partBytes: Long = 256L << 20,
    bucketBytes: Long = Layer.BytesMax)
    extends AutoCloseable {
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
   * @throws LimitException if a bucket is larger than an array
   */
  def foreachBucket(buckets: Int)(use: (Int, RowBlock) => Unit): Unit = {
    val atOnce = math.min(BucketsAtOnce, buckets)
    (0 until buckets / atOnce).foreach(part => pass(buckets, part * atOnce, atOnce)(use))
  }

  /** Passes the rows of neighbouring buckets on: together, or in halves where they are too many. */
  private def pass(buckets: Int, first: Int, count: Int)(use: (Int, RowBlock) => Unit): Unit =
    answered(read(buckets, first, count)) match {
      case Some(found) => found.foreachBucket(count)((bucket, rows) => use(first + bucket, rows))
      case None if count > 1 =>
        pass(buckets, first, count / 2)(use)
        pass(buckets, first + count / 2, count / 2)(use)
      case None =>
        throw new LimitException(
          s"$what: the rows of one key take more than $bucketBytes bytes in one partition: of one join key, or in map state of one " +
            "grouping key, all rows are stored together. Nothing was committed. Spread them over more keys, or remove some of " +
            "them, then try again.")
    }

  /** Closes the file; never throws, since the version may be committed. */
  override def close(): Unit =
    try channel.close()
    catch { case _: IOException => () }

  /** Reads neighbouring buckets of a part; None if they are too large to be read together. */
  private def read(buckets: Int, first: Int, count: Int): Option[Layer] = {
    val atOnce = math.min(BucketsAtOnce, buckets)
    val slices = first / atOnce until Slices by buckets / atOnce
    val bytes =
      layers.iterator.map(starts => slices.iterator.map(i => starts(i + 1) - starts(i)).sum).sum
    val found = new Layer(InitialRows, math.min(LayerBytesMax, bytes + bytes / 4).toInt)
    val most = if (count > 1) partBytes else bucketBytes
    val all = for {
      starts <- layers.iterator
      slice <- slices.iterator if starts(slice + 1) > starts(slice)
    } yield {
      val raw = new Array[Byte]((starts(slice + 1) - starts(slice)).toInt)
      readFully(ByteBuffer.wrap(raw), starts(slice))
      hasPut(found, raw, most) { hash =>
        val bucket = (hash & (buckets - 1)) - first
        if (bucket < count) bucket else Elsewhere
      }
    }
    Option.when(all.forall(identity))(found)
  }

  /** Adds rows to a layer, each with its bucket as its hash; @return false at `most` bytes */
  private def hasPut(layer: Layer, raw: Array[Byte], most: Long)(
      bucketOf: Int => Int): Boolean = {
    val rows = ByteBuffer.wrap(raw)
    var fits = true
    while (fits && rows.hasRemaining) {
      val bucket = bucketOf(rows.getInt())
      val (keyLength, valueLength) = (rows.getInt(), rows.getInt())
      val key = rows.position()
      if (bucket >= 0) {
        fits = layer.usedBytes + Layer.bytesOf(keyLength, valueLength) <= most
        if (fits) layer.put(bucket, raw, key, keyLength, raw, key + keyLength, valueLength)
      }
      rows.position(key + keyLength + valueLength)
    }
    fits
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
  private val Elsewhere = -1
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
