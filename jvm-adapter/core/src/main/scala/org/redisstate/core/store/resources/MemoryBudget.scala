package org.redisstate.core.store.resources

import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.ReentrantLock

import scala.jdk.CollectionConverters._

import org.redisstate.core.concurrent.GuardedBy

/** Rows of a store that can be compressed or dropped when memory is short. */
private[store] trait Evictable {

  /**
   * Compresses decoded blocks until so many bytes are free.
   *
   * @return bytes that were freed
   */
  private[store] def shrink(bytes: Long, everything: Boolean): Long

  /**
   * Drops compressed blocks that Redis has in a snapshot, until so many bytes are free.
   *
   * @return bytes that were freed
   */
  private[store] def drop(bytes: Long): Long

  /**
   * Drops versions whose rows need more than single blocks, the previous version first.
   *
   * @return bytes that were freed
   */
  private[store] def forget(): Long
}

/**
 * Local memory of all stores of an executor. A thread that reads from Redis reserves the bytes
 * first. Without enough free bytes, that thread makes room in four steps: it compresses buckets
 * that were not used for long, then all buckets; it drops compressed buckets that Redis has, until
 * their next use; finally it drops the changes since a snapshot, which are then read from their
 * deltas, bucket by bucket. Only write sets in progress cannot be dropped.
 */
final class MemoryBudget(val bytesMax: Long) {
  import MemoryBudget._

  private val stores = new CopyOnWriteArrayList[Evictable]

  /** Bytes of the stores, as each counted last. */
  private val held = new AtomicLong

  /** Part of `held` in write sets in progress. */
  private val pinned = new AtomicLong

  /** Bytes that are granted, and not yet counted by a store. */
  private val granted = new AtomicLong
  private val peak = new AtomicLong

  /** Part of `held` and `granted` that was read ahead, and not yet used. */
  private val ahead = new AtomicLong

  /** Part of `held` in filters of rows, which live as long as their rows. */
  private val filters = new AtomicLong

  /** Held while room is made, which computes only, and never waits for others. */
  private val making = new ReentrantLock

  /** Store at which the next search for room begins. */
  @GuardedBy("making") private var hand = 0

  def usedBytes: Long = held.get + granted.get

  /** Most bytes ever used at one time. */
  def peakBytes: Long = peak.get

  private[store] def register(store: Evictable): Unit = { stores.add(store); () }
  private[store] def unregister(store: Evictable): Unit = { stores.remove(store); () }

  /**
   * Adjusts the account of a store.
   *
   * @param bytes change of all bytes
   * @param sessions change of bytes of write sets in progress, which `bytes` includes
   * @param filtering change of bytes of filters, which `bytes` includes
   */
  private[store] def adjust(bytes: Long, sessions: Long, filtering: Long = 0): Unit = {
    held.addAndGet(bytes)
    pinned.addAndGet(sessions)
    filters.addAndGet(filtering)
    notePeak()
  }

  /** @see [[org.redisstate.core.local.blocks.Room.take]] */
  private[store] def take(bytes: Long): Unit = {
    granted.addAndGet(bytes)
    check()
    notePeak()
  }

  /**
   * Grants bytes for reading ahead while they are free, and below the bound: otherwise a larger
   * state would make tasks drop rows that were read ahead for them.
   */
  private[store] def offer(bytes: Long): Boolean = {
    val free = bytesMax - bytesMax / KeptFreeShare
    if (held.get + granted.addAndGet(bytes) <= free) {
      notePeak()
      true
    } else {
      granted.addAndGet(-bytes)
      false
    }
  }

  /** Bytes that one more prefetch may read; a few buckets always, which `take` counts too. */
  private[store] def aheadFree: Long =
    math.min(bytesMax / AheadShareOfOne, math.max(0L, bytesMax / AheadShare - ahead.get))

  /** Adjusts the bytes that prefetches have read, and that no task has used yet. */
  private[store] def aheadBy(bytes: Long): Unit = {
    ahead.addAndGet(bytes)
    ()
  }

  /** Returns whether filters may take so many more bytes. */
  private[store] def admitsFilter(bytes: Long): Boolean =
    filters.get + bytes <= bytesMax / FilterShare

  private[store] def give(bytes: Long): Unit = {
    granted.addAndGet(-bytes)
    check()
  }

  /**
   * Makes room if more is used than allowed; a little more than needed, so that the next call is
   * not soon.
   */
  private[store] def check(): Unit =
    if (usedBytes > boundBytes) {
      making.lock()
      try {
        makeRoom(_.shrink(_, everything = false))
        makeRoom(_.shrink(_, everything = true))
        makeRoom(_.drop(_))
        makeRoom((store, _) => store.forget())
      } finally making.unlock()
    }

  /**
   * Bytes that may be used at present: write sets make other rows leave, except for a part to work
   * in, which filters cannot take.
   */
  def boundBytes: Long = math.max(bytesMax, pinned.get + filters.get + bytesMax / LeftShare)

  private def makeRoom(free: (Evictable, Long) => Long): Unit =
    if (usedBytes > boundBytes) {
      val all = stores.asScala.toIndexedSeq
      var visited = 0
      while (visited < all.length && excess > 0) {
        hand = (hand + 1) % all.length
        free(all(hand), excess)
        visited += 1
      }
    }

  private def excess: Long = usedBytes - boundBytes + bytesMax / ClearedShare

  private def notePeak(): Unit = {
    peak.accumulateAndGet(usedBytes, math.max(_, _))
    ()
  }
}

private object MemoryBudget {

  /** Shares, as divisors, for rows that all prefetches, and one prefetch, have read ahead. */
  private val AheadShare = 4
  private val AheadShareOfOne = 16

  /** Share for filters, which rows do not displace. */
  private val FilterShare = 4

  /** Share of the memory, as a divisor, that reading ahead keeps free. */
  private val KeptFreeShare = 8

  /** Share for rows that are read, however large the write sets are. */
  private val LeftShare = 4

  /** Share that is freed in addition to the need. */
  private val ClearedShare = 16
}
