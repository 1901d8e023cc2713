package org.redisstate.core.store

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._

/**
 * The local memory of all stores of an executor. Above it, buckets that nobody touched lately are
 * compressed, then all; then compressed ones that Redis has are forgotten until they are touched.
 */
final class MemoryBudget(val bytesMax: Long) {
  private val stores = ConcurrentHashMap.newKeySet[PartitionStore]
  private val checking = new AtomicBoolean

  def usedBytes: Long = stores.asScala.iterator.map(_.localBytes).sum

  private[store] def register(store: PartitionStore): Unit = { stores.add(store); () }
  private[store] def unregister(store: PartitionStore): Unit = { stores.remove(store); () }

  private[store] def checkSoon(): Unit =
    if (checking.compareAndSet(false, true)) Background.helping("memory check") {
      try {
        if (usedBytes > bytesMax) stores.forEach(_.shrink(everything = false))
        if (usedBytes > bytesMax) stores.forEach(_.shrink(everything = true))
        stores.forEach { store =>
          val excess = usedBytes - bytesMax
          if (excess > 0) store.drop(excess)
          ()
        }
      } finally checking.set(false)
    }
}
