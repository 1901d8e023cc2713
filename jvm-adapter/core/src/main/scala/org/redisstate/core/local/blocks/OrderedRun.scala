package org.redisstate.core.local.blocks

import java.util.concurrent.atomic.{AtomicLong, AtomicReference}
import java.util.concurrent.locks.ReentrantLock

import org.redisstate.core.format.RowBlock

/** Reads blocks of an ordered family that are still in Redis only. */
trait OrderedSource {

  /** The blocks [from, until), validated; called from any thread. */
  def read(from: Int, until: Int): Array[RowBlock]
}

/**
 * A block of an ordered family: decoded, compressed, or known by its first key only. Its content
 * never changes.
 *
 * @param firstKey no row of the block is below it
 * @param run where it is read from; null for a block that Redis does not have
 */
private[local] final class OrderedSlot private (
    val firstKey: Array[Byte],
    run: OrderedRun,
    index: Int,
    initial: RowBlock) {
  import OrderedSlot._

  private val held = new AtomicReference[AnyRef](initial)
  @volatile private var touched = true
  @volatile private var seenBytes = if (initial == null) -1L else initial.memoryBytes

  def isHere: Boolean = held.get != null
  def wasHere: Boolean = seenBytes >= 0
  def memoryBytes: Long = OverheadBytes + firstKey.length + Packed.sizeOf(held.get)

  /** Bytes of the block when decoded; an estimate until it was read once. */
  def decodedBytes: Long = if (wasHere) seenBytes else Room.BlockBytesMax

  def rows(room: Room): RowBlock = {
    touched = true
    held.get match {
      case rows: RowBlock => rows
      case packed: Packed =>
        Room.taking(room, packed.rowBytes) {
          val rows = packed.unpack()
          replace(packed, rows)
          rows
        }
      case _ => Room.missing(room)(run.load(index, room))
    }
  }

  /** Loads the block if there is room; @return whether it is here. */
  def fill(room: Room): Boolean = isHere || run.fill(index, room)

  def compress(everything: Boolean): Unit = {
    if (everything || !touched) held.get match {
      case rows: RowBlock => replace(rows, Packed.of(rows))
      case _ => ()
    }
    touched = false
  }

  def drop(): Unit = held.get match {
    case packed: Packed if run != null => replace(packed, null)
    case _ => ()
  }

  private[local] def came(rows: RowBlock): Unit = {
    seenBytes = rows.memoryBytes
    replace(null, rows)
  }

  private def replace(old: AnyRef, now: AnyRef): Unit =
    if (held.compareAndSet(old, now)) {
      Changes.incrementAndGet()
      ()
    }
}

private[local] object OrderedSlot {
  private val OverheadBytes = 72L

  /** Grows whenever a block changes its form, so that sums over many blocks can be kept. */
  val Changes: AtomicLong = new AtomicLong

  def of(rows: RowBlock): OrderedSlot = {
    val at = rows.keyOffset(0)
    val first = java.util.Arrays.copyOfRange(rows.bytes, at, at + rows.keyLength(0))
    new OrderedSlot(first, null, 0, rows)
  }

  def remote(firstKey: Array[Byte], run: OrderedRun, index: Int): OrderedSlot =
    new OrderedSlot(firstKey, run, index, null)
}

/** The blocks of an ordered family in a segment; neighbours are read together. Thread-safe. */
private[local] final class OrderedRun(firstKeys: Seq[Array[Byte]], source: OrderedSource) {
  import OrderedRun._

  val slots: Array[OrderedSlot] =
    firstKeys.iterator.zipWithIndex.map { case (key, i) =>
      OrderedSlot.remote(key, this, i)
    }.toArray
  private val locks =
    Array.fill((slots.length + ChunkBlocks - 1) / ChunkBlocks)(new ReentrantLock)

  /** Reads a block; its neighbours too while there is room for them. */
  def load(index: Int, room: Room): RowBlock = locked(index) {
    if (slots(index).isHere) slots(index).rows(room)
    else {
      val from = gapStart(index)
      Room.offered(room, grantFor(gapEnd(index) - from))(
        install(from, gapEnd(index), room)(index - from)).getOrElse(
        Room.taking(room, grantFor(1))(install(index, index + 1, room)(0)))
    }
  }

  /** Reads a block and its neighbours if there is room; @return whether there was. */
  def fill(index: Int, room: Room): Boolean = locked(index) {
    slots(index).isHere || {
      val until = gapEnd(index)
      Room.offered(room, grantFor(until - index))(install(index, until, room)).nonEmpty
    }
  }

  private def locked[A](index: Int)(work: => A): A = {
    val lock = locks(index / ChunkBlocks)
    lock.lock()
    try work
    finally lock.unlock()
  }

  private def install(from: Int, until: Int, room: Room): Array[RowBlock] = {
    val rows = source.read(from, until)
    val again = (from until until).count(slots(_).wasHere)
    if (again > 0) room.readAgain(again)
    rows.indices.foreach(i => slots(from + i).came(rows(i)))
    rows
  }

  private def grantFor(blocks: Int): Long = blocks * Room.BlockBytesMax

  /** First of the blocks around one, within its chunk, that are not here. */
  private def gapStart(index: Int): Int = {
    val least = index / ChunkBlocks * ChunkBlocks
    var at = index
    while (at > least && !slots(at - 1).isHere) at -= 1
    at
  }

  private def gapEnd(index: Int): Int = {
    val most = math.min(slots.length, (index / ChunkBlocks + 1) * ChunkBlocks)
    var at = index + 1
    while (at < most && !slots(at).isHere) at += 1
    at
  }
}

private[core] object OrderedRun {

  /** Number of blocks in one read: about 1 MiB of rows, a round trip's worth. */
  val ChunkBlocks: Int = 64
}
