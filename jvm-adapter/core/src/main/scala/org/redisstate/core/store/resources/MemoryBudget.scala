package org.redisstate.core.store.resources

import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.ReentrantLock

import scala.jdk.CollectionConverters._

import org.redisstate.core.concurrent.GuardedBy

/** Rows of a store that make way where memory is short. */
private[store] trait Evictable {

  /** Decoded blocks become compressed ones, until so many bytes are free; @return how many are. */
  private[store] def shrink(bytes: Long, everything: Boolean): Long

  /**
   * Compressed blocks that Redis has in a snapshot are forgotten, until so many bytes are free;
   * @return how many are.
   */
  private[store] def drop(bytes: Long): Long

  /** Versions whose rows need more than single blocks are forgotten, the previous one first; @return what is free. */
  private[store] def forget(): Long
}

/**
 * Local memory of all stores of an executor. A thread that reads from Redis reserves the bytes
 * first. Without enough free bytes, that thread makes room: buckets unused for long are compressed,
 * then all; then compressed buckets that Redis has are dropped until their next use; at last the
 * changes since a snapshot are dropped too, and read from their deltas, bucket by bucket. Only
 * write sets in progress cannot be dropped.
 */
final class MemoryBudget(val bytesMax: Long) {
  import MemoryBudget._

  private val stores = new CopyOnWriteArrayList[Evictable]

  /** Bytes of the stores, as they counted them last. */
  private val held = new AtomicLong

  /** Part of `held` in write sets in progress. */
  private val pinned = new AtomicLong

  /** Bytes on their way to the stores. */
  private val granted = new AtomicLong
  private val peak = new AtomicLong

  /** Part of `held` and `granted` that was read ahead of its use. */
  private val ahead = new AtomicLong

  /** Part of `held` in filters of rows, which stay as long as those may be asked for. */
  private val filters = new AtomicLong

  /** Held while room is made: computes only, never waits for others. */
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
   * @param sessions of them, those of write sets in progress
   * @param filtering of them, those of filters
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
   * Reading ahead stops below the bound, so that where the state is larger, what a task waits for
   * does not have to push out what was read ahead of it.
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

  /** Bytes that one more prefetch may read ahead; a few buckets always, which `take` counts too. */
  private[store] def aheadFree: Long =
    math.min(bytesMax / AheadShareOfOne, math.max(0L, bytesMax / AheadShare - ahead.get))

  /** Adjusts the bytes that prefetches have read, and that are not used yet. */
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
   * Makes room if more is used than allowed; a little more than needed, so as not to come again at
   * once.
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
   * Bytes that may be used now: write sets push other rows out, but leave them room to work in, of
   * which filters take nothing.
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

  /** Shares for rows that are read ahead of their use: of all prefetches, and of one. */
  private val AheadShare = 4
  private val AheadShareOfOne = 16

  /** Share for filters, which rows do not push out. */
  private val FilterShare = 4

  /** Share of the memory that reading ahead does not fill. */
  private val KeptFreeShare = 8

  /** Share that is left to rows that are read, however large the write sets are. */
  private val LeftShare = 4

  /** Share that is freed beyond the need. */
  private val ClearedShare = 16
}
