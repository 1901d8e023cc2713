package org.redisstate.core.local

import java.util.concurrent.locks.ReentrantLock

import org.redisstate.core.format.RowBlock

/** Reads blocks of an ordered family that are still in Redis only. */
trait OrderedSource {

  /** The blocks [from, until), validated and none of them empty; called from any thread. */
  def read(from: Int, until: Int): Array[RowBlock]
}

/**
 * A block of an ordered family: here, or known by its first key only. What it holds never changes.
 *
 * @param run where it is read from; null for a block that is here
 */
private[local] final class OrderedSlot private (
    val firstKey: Array[Byte],
    run: OrderedRun,
    index: Int,
    initial: RowBlock) {
  @volatile private var here: RowBlock = initial

  def isLoaded: Boolean = here != null
  def memoryBytes: Long = if (here == null) 0L else here.memoryBytes

  def rows: RowBlock = {
    if (here == null) run.load(index)
    here
  }

  private[local] def fill(rows: RowBlock): Unit = here = rows
}

private[local] object OrderedSlot {
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

  def load(index: Int): Unit = {
    val chunk = index / ChunkBlocks
    locks(chunk).lock()
    try if (!slots(index).isLoaded) {
        val from = chunk * ChunkBlocks
        val until = math.min(slots.length, from + ChunkBlocks)
        source.read(from, until).iterator.zip(slots.iterator.slice(from, until)).foreach {
          case (rows, slot) => slot.fill(rows)
        }
      }
    finally locks(chunk).unlock()
  }
}

private[core] object OrderedRun {

  /** So many blocks are read together: about 1 MiB of rows, a round trip's worth. */
  val ChunkBlocks: Int = 64
}
