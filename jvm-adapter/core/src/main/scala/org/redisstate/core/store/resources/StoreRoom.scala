package org.redisstate.core.store.resources

import java.util.concurrent.FutureTask

import org.redisstate.core.local.blocks.Room

/**
 * Share of a store in the memory budget.
 *
 * @param recount makes the store count new rows before their grant ends
 */
private[store] final class StoreRoom(
    budget: MemoryBudget,
    counters: StoreCounters,
    recount: () => Unit)
    extends Room {
  override def take(bytes: Long): Unit = StoreCounters.timed(counters.roomNs)(budget.take(bytes))
  override def offer(bytes: Long): Boolean = budget.offer(bytes)

  override def rangeBytes: Long = budget.bytesMax / StoreRoom.PassShare
  override def begin(read: FutureTask[_]): Unit = FileReads.submit(read)

  override def give(bytes: Long): Unit = {
    recount()
    budget.give(bytes)
  }

  override def admits(bytes: Long): Boolean = budget.admitsFilter(bytes)

  override def filtered(): Unit = {
    counters.filterSkips.incrementAndGet()
    ()
  }

  override def missed(nanos: Long): Unit = {
    counters.misses.incrementAndGet()
    counters.missNs.addAndGet(nanos)
    ()
  }

  override def readAgain(blocks: Int): Unit = {
    counters.bucketsReloaded.addAndGet(blocks.toLong)
    ()
  }
}

private object StoreRoom {

  /** Share of the local memory that one range of a pass may have; a pass has two. */
  private val PassShare = 64
}
