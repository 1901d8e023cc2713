package org.redisstate.core.store

import org.redisstate.core.local.Room

/**
 * One store's share of the memory budget, which counts what arrived before its reservation ends.
 */
private[store] final class StoreRoom(budget: MemoryBudget, store: PartitionStore) extends Room {
  override def take(bytes: Long): Unit = budget.take(bytes)
  override def offer(bytes: Long): Boolean = budget.offer(bytes)

  override def give(bytes: Long): Unit = {
    store.recount()
    budget.give(bytes)
  }

  override def readAgain(blocks: Int): Unit = {
    store.counters.bucketsReloaded.addAndGet(blocks.toLong)
    ()
  }
}
