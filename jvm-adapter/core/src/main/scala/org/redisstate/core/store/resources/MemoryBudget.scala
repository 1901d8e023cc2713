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
 * The local memory of all stores of an executor. Whoever reads from Redis reserves the bytes
 * first. Where they are not free, the thread that asks makes room: buckets that nobody touched
 * lately are compressed, then all; then compressed ones that Redis has are dropped until they are
 * touched; at last the changes since a snapshot are dropped too, until they are read from their
 * deltas, bucket by bucket. Only write sets in progress cannot be dropped.
 */
final class MemoryBudget(val bytesMax: Long) {
  import MemoryBudget._

  private val stores = new CopyOnWriteArrayList[Evictable]

  /** What the stores hold, as they counted it last. */
  private val held = new AtomicLong

  /** Of it, write sets in progress. */
  private val pinned = new AtomicLong

  /** What is on its way to them. */
  private val granted = new AtomicLong
  private val peak = new AtomicLong

  /** Held while room is made: computing only, no waiting for others. */
  private val making = new ReentrantLock

  /** The store with which the next search for room begins. */
  @GuardedBy("making") private var hand = 0

  def usedBytes: Long = held.get + granted.get

  /** The most that was used at any time. */
  def peakBytes: Long = peak.get

  private[store] def register(store: Evictable): Unit = { stores.add(store); () }
  private[store] def unregister(store: Evictable): Unit = { stores.remove(store); () }

  /**
   * Told by a store how the bytes that it holds changed.
   *
   * @param sessions of them, those of write sets in progress
   */
  private[store] def adjust(bytes: Long, sessions: Long): Unit = {
    held.addAndGet(bytes)
    pinned.addAndGet(sessions)
    notePeak()
  }

  /** @see [[org.redisstate.core.local.Room.take]] */
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

  private[store] def give(bytes: Long): Unit = {
    granted.addAndGet(-bytes)
    check()
  }

  /** Makes room if more is used than there may be; a little more than that, so as not to come again at once. */
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

  /** What may be used now: write sets push others out, but leave them room to work in. */
  def boundBytes: Long = math.max(bytesMax, pinned.get + bytesMax / LeftShare)

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

  /** This part of the memory is not filled by reading ahead. */
  private val KeptFreeShare = 8

  /** This part is left to what is read, however large the write sets are. */
  private val LeftShare = 4

  /** So much is freed beyond what is needed. */
  private val ClearedShare = 16
}
