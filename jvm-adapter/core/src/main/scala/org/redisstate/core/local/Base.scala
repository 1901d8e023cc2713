package org.redisstate.core.local

import java.util
import java.util.BitSet
import java.util.concurrent.FutureTask
import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.locks.ReentrantLock

import org.redisstate.core.format.{Bucketing, RowBlock}
import org.redisstate.core.local.blocks.{BucketPass, BucketSlots, OrderedRows, Packed, Room}

/**
 * Rows of a version below its layers: an array of buckets, each decoded, compressed, or not in
 * memory; and the rows of ordered families, in key order. The content of a bucket never changes,
 * only its form does.
 *
 * @param room grants memory before rows are read or decompressed
 */
final class Base private (
    val buckets: Int,
    initialSource: BucketSource,
    initialOrdered: Map[Int, OrderedRows],
    room: Room)
    extends BucketPass.Buckets {
  import Base._

  private val slots = new BucketSlots(buckets)
  @volatile private var source = initialSource
  @volatile private var orderedRows = initialOrdered

  /** Rows that passes hold. */
  private val asides = util.Collections.newSetFromMap(
    new util.WeakHashMap[BucketPass.Aside, java.lang.Boolean])

  /** True if rows from Redis stay in memory: only while a store counts them. */
  @volatile private var keeps = true

  private val filter = new SourceFilter(room)
  private val chunkLocks =
    Array.fill((buckets + ChunkBuckets - 1) / ChunkBuckets)(new ReentrantLock)

  def memoryBytes: Long = slots.memoryBytes + heldBytes + asideBytes +
    orderedRows.valuesIterator.map(_.memoryBytes).sum

  private def asideBytes: Long = asides.synchronized {
    var sum = 0L
    asides.forEach(one => sum += one.bytes)
    sum
  }

  /** Part of `memoryBytes` that the source holds for buckets that were not read yet. */
  private[local] def heldBytes: Long = {
    val from = source
    if (from == null) 0L else from.heldBytes
  }

  /** Bytes of filters, which are not part of `memoryBytes`. */
  private[core] def filterBytes: Long = filter.bytes

  /**
   * Bytes of all rows when decoded, whatever their present form; an estimate until all were read.
   */
  def decodedBytes: Long = bucketBytes + orderedBytes

  /** Part of `decodedBytes` in ordered families. */
  def orderedBytes: Long = orderedRows.valuesIterator.map(_.decodedBytes).sum

  /** Part of `decodedBytes` in buckets. */
  private[local] def bucketBytes: Long = slots.decodedBytes(BucketSource.AverageBytes)

  def orderedFamilies: Iterable[Int] = orderedRows.keys
  private[local] def ordered(family: Int): OrderedRows =
    orderedRows.getOrElse(family, OrderedRows.Empty)

  /** Returns the rows of the bucket, or block, that a key belongs to. */
  def rowsFor(hash: Int, key: Array[Byte], offset: Int, length: Int): RowBlock = {
    val sorted =
      if (orderedRows.isEmpty) OrderedRows.Empty else ordered(StoredKey.familyOf(key, offset))
    if (sorted.isEmpty) bucketOf(hash)
    else sorted.block(sorted.blockOf(key, offset, length))
  }

  /** Returns the rows of the bucket of a hash, at least those with that hash. */
  private[local] def bucketOf(hash: Int): RowBlock = {
    val index = Bucketing.bucket(hash, buckets)
    val known = if (isMissing(index)) filtered() else null
    if (known != null && known.rows.denies(hash)) {
      room.filtered()
      known.source.unfiltered(index, hash)
    } else bucket(index)
  }

  /**
   * Returns whether a filter denies a hash; the source may have rows that the filter does not
   * cover.
   */
  private[core] def denies(hash: Int): Boolean = {
    val known = filtered()
    known != null && known.rows.denies(hash)
  }

  /**
   * Returns the source with its filter; null if it is not in files, or if its rows are not kept.
   */
  private def filtered(): SourceFilter.Filtered = {
    val from = source
    if (from == null || !keeps) null else filter.of(from)
  }

  def bucket(index: Int): RowBlock = {
    slots.touch(index)
    slots(index) match {
      case rows: RowBlock => rows
      case packed: Packed => unpacked(index, packed)
      case _ => Room.missing(room)(load(index))
    }
  }

  private def unpacked(index: Int, packed: Packed): RowBlock =
    Room.taking(room, packed.rowBytes) {
      val rows = packed.unpack()
      slots.replace(index, packed, rows)
      rows
    }

  /** Returns a function that reads every bucket once, in ascending order, for one thread. */
  def pass(): Int => RowBlock = new BucketPass(this, room)

  private[local] override def hold(aside: BucketPass.Aside): Unit = asides.synchronized {
    asides.add(aside)
    ()
  }

  private[local] override def unpackedHere(index: Int): RowBlock = slots.unpacked(index)

  private[local] override def isFromFile: Boolean = {
    val from = source
    from != null && from.isInFiles
  }

  private[local] override def rangeBuckets: Int = {
    val most = math.min(
      BucketGroups.RangeMax / math.max(1L, source.blockBytes),
      room.rangeBytes / source.bucketBytes)
    math.max(BucketPass.AsideBuckets.toLong, math.min(most, buckets.toLong)).toInt
  }

  private[local] override def nextMissing(from: Int): Int = slots.nextMissing(from)

  private[local] override def rangeEnd(from: Int, most: Int): Int =
    slots.rangeEnd(from, most, BucketGroups.GapMax / math.max(1L, source.blockBytes))

  /** Returns whether missing buckets may have to be read from a file. */
  def isInFiles: Boolean = {
    val from = source
    from != null && from.isInFiles && slots.nextMissing(0) < buckets
  }

  private[core] def isMissing(index: Int): Boolean = slots.isMissing(index)

  /** Bytes that one more bucket takes while it is read. */
  private[core] def bucketGrant: Long = {
    val from = source
    if (from == null) 0L else from.bucketBytes
  }

  /**
   * Groups the missing ones of some buckets, ascending, by ranges of a file.
   *
   * @param grantMax most bytes of a range, unless a single bucket has more
   */
  private[core] def prefetchGroups(wanted: BitSet, grantMax: Long): Seq[Array[Int]] = {
    val from = source
    if (from == null) Nil
    else {
      val missing = wanted.stream.filter(isMissing(_)).toArray
      val isMuch = missing.length.toLong * BucketGroups.WantedShare > buckets
      BucketGroups.of(missing, from.blockBytes, isMuch, grantMax)
    }
  }

  /**
   * Reads the missing ones of some buckets, ascending, at once. They count as touched, so that
   * other buckets are dropped first.
   *
   * @return number of buckets that were read
   */
  private[core] def prefetch(wanted: Array[Int]): Int = {
    val missing = wanted.filter(isMissing)
    val from = source
    if (missing.isEmpty || !keeps || from == null) 0
    else {
      val span = (missing.last - missing.head + 1) * from.blockBytes
      Room.taking(room, missing.length * from.bucketBytes + span) {
        val rows = noted(missing.toIndexedSeq)(from.read(_))
        missing.indices.foreach { i =>
          slots.touch(missing(i))
          if (keeps) slots.replace(missing(i), null, rows(i))
        }
        missing.length
      }
    }
  }

  /** Number of rows in buckets, if no bucket is missing. */
  private[local] def rowsHere: Option[Long] = slots.rows

  /**
   * Loads everything while there is room; stops when `cancelled`.
   *
   * @return whether everything is here
   */
  def loadAll(cancelled: () => Boolean): Boolean =
    loadBuckets(cancelled) && orderedRows.valuesIterator.forall(_.loadAll(cancelled))

  /** Loads the buckets while there is room; several threads share the work. */
  private[core] def loadBuckets(cancelled: () => Boolean): Boolean =
    keeps && loadKept(cancelled)

  /**
   * Loads the buckets for a pass over all of them while there is room; from files by many threads.
   */
  private[core] def loadForPass(): Unit = {
    val ended = new AtomicBoolean
    val helpers =
      if (!keeps || !isFromFile) 0
      else math.min(PassThreads, (0 until buckets).count(isMissing) / ChunkBuckets)
    (0 until helpers).foreach(_ =>
      room.begin(new FutureTask[Boolean](() => loadBuckets(() => ended.get))))
    try loadBuckets(() => false)
    finally ended.set(true)
    ()
  }

  private def loadKept(cancelled: () => Boolean): Boolean = {
    var busy = List.empty[Int]
    var goesOn = true
    var chunk = 0
    while (chunk < chunkLocks.length && goesOn) {
      if (!isHere(chunk)) {
        if (cancelled()) goesOn = false
        else if (chunkLocks(chunk).tryLock()) {
          try goesOn = fill(chunk)
          finally chunkLocks(chunk).unlock()
        } else busy ::= chunk
      }
      chunk += 1
    }
    goesOn && busy.forall { c =>
      !cancelled() && {
        chunkLocks(c).lock()
        try fill(c)
        finally chunkLocks(c).unlock()
      }
    }
  }

  /**
   * Reads the missing buckets of a chunk.
   *
   * @return whether there was room
   */
  private def fill(chunk: Int): Boolean = {
    val until = chunkEnd(chunk)
    var at = slots.nextMissing(chunk * ChunkBuckets, until)
    var hasRoom = true
    while (at < until && hasRoom) {
      val end = gapEnd(at)
      hasRoom = Room.offered(room, grantFor(end - at))(install(at, end)).nonEmpty
      at = slots.nextMissing(end, until)
    }
    hasRoom
  }

  private def isHere(chunk: Int): Boolean = {
    val until = chunkEnd(chunk)
    slots.nextMissing(chunk * ChunkBuckets, until) == until
  }

  /**
   * Compresses buckets that were not touched since the last call, or any, until so many bytes are
   * free.
   *
   * @return bytes that were freed
   */
  def compress(bytes: Long, everything: Boolean): Long = {
    val freed = slots.compress(bytes, everything)
    orderedRows.valuesIterator.foldLeft(freed)((sum, rows) =>
      sum + rows.compress(bytes - sum, everything))
  }

  /** Attaches a copy in Redis, from which rows can be read again once they are dropped. */
  def attach(copy: BucketSource, ordered: Map[Int, OrderedRows]): Unit = {
    orderedRows = ordered
    filter.forget()
    source = copy
  }

  /** Returns whether the buckets were made here, and Redis does not have them yet. */
  def isOwn: Boolean = source == null

  /**
   * Drops compressed blocks that Redis has, until so many bytes are free.
   *
   * @return bytes that were freed
   */
  def drop(bytes: Long): Long = {
    val freed = if (source == null) 0L else slots.drop(bytes)
    orderedRows.valuesIterator.foldLeft(freed)((sum, rows) => sum + rows.drop(bytes - sum))
  }

  /**
   * Sets whether a store counts these rows. Uncounted rows are read for their user alone, and
   * dropped where Redis has them.
   */
  private[core] def counted(isCounted: Boolean): Unit = {
    keeps = isCounted
    if (!isCounted) filter.forget()
    if (!isCounted && source != null) slots.clear()
  }

  /** Loads a bucket; its neighbours too while there is room for them. */
  private def load(index: Int): RowBlock = {
    val lock = chunkLocks(index / ChunkBuckets)
    lock.lock()
    try slots(index) match {
        case rows: RowBlock => rows
        case packed: Packed => unpacked(index, packed)
        case _ =>
          // Without `keeps` the neighbours would be dropped at once.
          val from =
            if (keeps) slots.missingStart(index, index / ChunkBuckets * ChunkBuckets) else index
          val until = if (keeps) gapEnd(index) else index + 1
          val rows = Room.offered(room, grantFor(until - from))(install(from, until)(index - from))
          rows.getOrElse(Room.taking(room, grantFor(1))(install(index, index + 1)(0)))
      }
    finally lock.unlock()
  }

  private[local] override def install(from: Int, until: Int): Array[RowBlock] = {
    val rows = read(from, until)
    if (keeps) rows.indices.foreach(i => slots.replace(from + i, null, rows(i)))
    rows
  }

  private[local] override def read(from: Int, until: Int): Array[RowBlock] =
    noted(from until until)(_ => source.read(from, until))

  private def noted(wanted: IndexedSeq[Int])(
      read: IndexedSeq[Int] => Array[RowBlock]): Array[RowBlock] = {
    val rows = read(wanted)
    filter.worked()
    val again = wanted.count(slots.wasSeen(_))
    if (again > 0) room.readAgain(again)
    rows.indices.foreach(i => slots.note(wanted(i), rows(i)))
    rows
  }

  private[local] override def grantFor(count: Int): Long = count * source.bucketBytes
  private def chunkEnd(chunk: Int): Int = math.min(buckets, (chunk + 1) * ChunkBuckets)

  private[local] override def gapEnd(index: Int): Int =
    slots.missingEnd(index, chunkEnd(index / ChunkBuckets))
}

object Base {

  /** Number of buckets in one read: about 1 MiB of rows, a round trip's worth. */
  val ChunkBuckets: Int = 64

  /** Threads that load chunks of a file, in addition to that of a pass. */
  private val PassThreads = 8

  def remote(
      buckets: Int,
      source: BucketSource,
      ordered: Map[Int, OrderedRows] = Map.empty,
      room: Room = Room.Unbounded): Base = new Base(buckets, source, ordered, room)

  def of(rows: Array[RowBlock]): Base = of(rows, Map.empty, Room.Unbounded)

  private[local] def of(
      rows: Array[RowBlock],
      ordered: Map[Int, OrderedRows],
      room: Room): Base = {
    val base = new Base(rows.length, null, ordered, room)
    rows.indices.foreach { i =>
      base.slots.note(i, rows(i))
      base.slots.replace(i, null, rows(i))
    }
    base
  }

  def empty(): Base = of(Array(RowBlock.Empty))
}
