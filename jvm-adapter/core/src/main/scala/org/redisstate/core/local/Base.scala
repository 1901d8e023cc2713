package org.redisstate.core.local

import java.util.concurrent.atomic.{AtomicLong, AtomicReferenceArray}
import java.util.concurrent.locks.ReentrantLock

import org.redisstate.core.errors.InternalException
import org.redisstate.core.format.{Bucketing, Compression, RowBlock}

/** Reads buckets of a base that are still in Redis only. */
trait BucketSource {

  /** Rows of the buckets [from, until), validated; called from any thread. */
  def read(from: Int, until: Int): Array[RowBlock]
}

/**
 * The rows of a version below its layers: an array of buckets, each decoded, compressed, or still
 * in Redis; and the rows of ordered families, in key order. What a bucket holds never changes; only the form in which it is kept does.
 */
final class Base private (
    val buckets: Int,
    initialSource: BucketSource,
    orderedRows: Map[Int, OrderedRows]) {
  import Base._

  private val slots = new AtomicReferenceArray[AnyRef](buckets)
  private val touched = new Array[Boolean](buckets)
  private val memory = new AtomicLong
  private val decoded = new AtomicLong
  @volatile private var source = initialSource
  @volatile private var loaded = initialSource == null
  private val chunkLocks =
    Array.fill((buckets + ChunkBuckets - 1) / ChunkBuckets)(new ReentrantLock)

  private def orderedBytes: Long = orderedRows.valuesIterator.map(_.memoryBytes).sum

  def memoryBytes: Long = memory.get + orderedBytes

  /** What all that was here needs decoded, however it is kept now. */
  def decodedBytes: Long = decoded.get + orderedBytes

  /** As `decodedBytes`, of the buckets only. */
  private[local] def bucketBytes: Long = decoded.get

  /** Whether all blocks of an ordered family are here. */
  private[core] def isWhole(family: Int): Boolean = ordered(family).isWhole

  def orderedFamilies: Iterable[Int] = orderedRows.keys
  private[local] def ordered(family: Int): OrderedRows =
    orderedRows.getOrElse(family, OrderedRows.Empty)

  /** The rows that hold a key, if they hold it. */
  def rowsFor(hash: Int, key: Array[Byte], offset: Int, length: Int): RowBlock = {
    val sorted =
      if (orderedRows.isEmpty) OrderedRows.Empty else ordered(Layer.familyOf(key, offset))
    if (sorted.isEmpty) bucket(Bucketing.bucket(hash, buckets))
    else sorted.block(sorted.blockOf(key, offset, length))
  }

  def bucket(index: Int): RowBlock = {
    touched(index) = true
    slots.get(index) match {
      case rows: RowBlock => rows
      case packed: Packed =>
        val rows = packed.unpack()
        replace(index, packed, rows)
        rows
      case _ =>
        loadChunk(index / ChunkBuckets)
        bucket(index)
    }
  }

  /** As `bucket`, for passes over everything: a compressed bucket stays so. */
  def peek(index: Int): RowBlock = slots.get(index) match {
    case packed: Packed => packed.unpack()
    case _ => bucket(index)
  }

  /** Number of rows in buckets; reads what is still in Redis. */
  def rows: Long = {
    loadBuckets(() => false)
    var sum = 0L
    var i = 0
    while (i < buckets) {
      slots.get(i) match {
        case rows: RowBlock => sum += rows.count
        case packed: Packed => sum += packed.rows
        case _ => ()
      }
      i += 1
    }
    sum
  }

  /** Brings everything in; stops when `cancelled`. */
  def loadAll(cancelled: () => Boolean): Unit = {
    loadBuckets(cancelled)
    orderedRows.valuesIterator.foreach(_.loadAll(cancelled))
  }

  /** Brings every bucket in; stops when `cancelled`. Several threads share the work. */
  private[core] def loadBuckets(cancelled: () => Boolean): Unit =
    if (!loaded) {
      var busy = List.empty[Int]
      var chunk = 0
      while (chunk < chunkLocks.length && !cancelled()) {
        if (chunkLocks(chunk).tryLock()) {
          try loadChunk(chunk)
          finally chunkLocks(chunk).unlock()
        } else busy ::= chunk
        chunk += 1
      }
      busy.foreach(c => if (!cancelled()) loadChunk(c))
      if (!cancelled()) loaded = true
    }

  /**
   * Compresses buckets that were not touched since the last call; all of them when `everything`.
   */
  def compress(everything: Boolean): Unit = {
    var i = 0
    while (i < buckets) {
      if (everything || !touched(i)) slots.get(i) match {
        case rows: RowBlock if rows.count > 0 => replace(i, rows, Packed.of(rows))
        case _ => ()
      }
      touched(i) = false
      i += 1
    }
  }

  /** From now on Redis has these rows too, so that they need not stay in memory. */
  def attach(copy: BucketSource): Unit = source = copy

  /**
   * Forgets compressed buckets that Redis has, until so many bytes are free.
   *
   * @return bytes that were freed
   */
  def drop(bytes: Long): Long = {
    val before = memory.get
    var chunk = 0
    while (source != null && chunk < chunkLocks.length && before - memory.get < bytes) {
      if (chunkLocks(chunk).tryLock()) {
        try dropChunk(chunk)
        finally chunkLocks(chunk).unlock()
      }
      chunk += 1
    }
    before - memory.get
  }

  private def dropChunk(chunk: Int): Unit = {
    val from = chunk * ChunkBuckets
    val until = math.min(buckets, from + ChunkBuckets)
    val packed = (from until until).forall { i =>
      slots.get(i) match {
        case rows: RowBlock => rows.count == 0
        case _ => true
      }
    }
    if (packed) {
      loaded = false
      var i = from
      while (i < until) {
        memory.addAndGet(-sizeOf(slots.getAndSet(i, null)))
        i += 1
      }
    }
  }

  private def loadChunk(chunk: Int): Unit = {
    chunkLocks(chunk).lock()
    try {
      val from = chunk * ChunkBuckets
      val until = math.min(buckets, from + ChunkBuckets)
      if (slots.get(from) == null) {
        val rows = source.read(from, until)
        var i = until - 1
        while (i >= from) {
          replace(i, null, rows(i - from))
          i -= 1
        }
      }
    } finally chunkLocks(chunk).unlock()
  }

  private def replace(index: Int, old: AnyRef, now: AnyRef): Unit =
    if (slots.compareAndSet(index, old, now)) {
      decoded.accumulateAndGet(memory.addAndGet(sizeOf(now) - sizeOf(old)), math.max(_, _))
      ()
    }
}

object Base {

  /** So many buckets are read together: about 1 MiB of rows, a round trip's worth. */
  val ChunkBuckets: Int = 64

  def remote(
      buckets: Int,
      source: BucketSource,
      ordered: Map[Int, OrderedRows] = Map.empty): Base = new Base(buckets, source, ordered)

  def of(rows: Array[RowBlock]): Base = of(rows, Map.empty)

  private[local] def of(rows: Array[RowBlock], ordered: Map[Int, OrderedRows]): Base = {
    val base = new Base(rows.length, null, ordered)
    rows.indices.foreach(i => base.replace(i, null, rows(i)))
    base
  }

  def empty(): Base = of(Array(RowBlock.Empty))

  private def sizeOf(slot: AnyRef): Long = slot match {
    case rows: RowBlock => rows.memoryBytes
    case packed: Packed => packed.bytes.length + 40L
    case _ => 0L
  }

  private final class Packed(val bytes: Array[Byte], length: Int, val rows: Int) {
    def unpack(): RowBlock = {
      val payload = new Array[Byte](length)
      if (!Compression.decompress(bytes, 0, bytes.length, payload)) {
        throw new InternalException("a bucket in memory does not decompress.")
      }
      RowBlock.parse(payload)
    }
  }

  private object Packed {
    def of(rows: RowBlock): Packed =
      new Packed(
        Compression.compress(rows.bytes, rows.bytes.length, 0),
        rows.bytes.length,
        rows.count)
  }
}
