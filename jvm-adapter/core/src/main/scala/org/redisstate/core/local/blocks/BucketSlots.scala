package org.redisstate.core.local.blocks

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong, AtomicReferenceArray}

import org.redisstate.core.format.RowBlock

/**
 * Buckets of a base in their present form: decoded, compressed, or missing. Counts their bytes.
 * Thread-safe; reads nothing.
 */
private[local] final class BucketSlots(buckets: Int) {
  import BucketSlots._

  private val slots = new AtomicReferenceArray[AnyRef](buckets)
  private val touched = new Array[Boolean](buckets)

  /** Buckets that were here once. */
  private val seen = new Array[Boolean](buckets)
  private val seenCount = new AtomicInteger
  private val memory = new AtomicLong
  private val decoded = new AtomicLong

  /** Bucket at which the next sweep begins. */
  @volatile private var hand = 0

  def memoryBytes: Long = memory.get + buckets * SlotBytes

  /**
   * Bytes of all buckets when decoded; an estimate until all were seen.
   *
   * @param average estimated bytes of a bucket while none was seen
   */
  def decodedBytes(average: Long): Long = {
    val count = seenCount.get
    if (count == buckets) decoded.get
    else if (count == 0) buckets * average
    else decoded.get * buckets / count
  }

  /** Returns a bucket as `RowBlock` or `Packed`; null if it is missing. */
  def apply(index: Int): AnyRef = slots.get(index)

  def isMissing(index: Int): Boolean = slots.get(index) == null

  /** Returns the rows of a bucket, which keeps its form; null if it is missing. */
  def unpacked(index: Int): RowBlock = slots.get(index) match {
    case rows: RowBlock => rows
    case packed: Packed => packed.unpack()
    case _ => null
  }

  /** Keeps a bucket from the next compression. */
  def touch(index: Int): Unit = touched(index) = true

  /** Number of rows, if no bucket is missing. */
  def rows: Option[Long] = {
    var sum = 0L
    var i = 0
    while (i < buckets) {
      slots.get(i) match {
        case rows: RowBlock => sum += rows.count
        case packed: Packed => sum += packed.rows
        case _ => return None
      }
      i += 1
    }
    Some(sum)
  }

  /** First missing bucket from one on, or `until`. */
  def nextMissing(from: Int, until: Int = buckets): Int = {
    var at = from
    while (at < until && slots.get(at) != null) at += 1
    at
  }

  /** First of the missing buckets that a missing one ends, at least `least`. */
  def missingStart(index: Int, least: Int): Int = {
    var at = index
    while (at > least && slots.get(at - 1) == null) at -= 1
    at
  }

  /** End of the missing buckets that a missing one begins, at most `most`. */
  def missingEnd(from: Int, most: Int): Int = {
    var at = from + 1
    while (at < most && slots.get(at) == null) at += 1
    at
  }

  /**
   * End of the missing buckets from one on, between which a few others may lie.
   *
   * @param gapMax most neighbours in between that are not missing
   */
  def rangeEnd(from: Int, most: Int, gapMax: Long): Int = {
    var end = from + 1
    var at = end
    while (at < most && at - end <= gapMax) {
      if (slots.get(at) == null) end = at + 1
      at += 1
    }
    end
  }

  /** Replaces a form of a bucket by another one, unless another thread was faster. */
  def replace(index: Int, old: AnyRef, form: AnyRef): Unit =
    if (slots.compareAndSet(index, old, form)) {
      memory.addAndGet(Packed.sizeOf(form) - Packed.sizeOf(old))
      ()
    }

  /** Makes every bucket missing. */
  def clear(): Unit = (0 until buckets).foreach(i => replace(i, slots.get(i), null))

  /** Returns whether a bucket was noted before. */
  def wasSeen(index: Int): Boolean = seen(index)

  /** Counts a bucket when it is seen for the first time. */
  def note(index: Int, rows: RowBlock): Unit = if (!seen(index)) {
    seen(index) = true
    seenCount.incrementAndGet()
    decoded.addAndGet(Packed.sizeOf(rows))
    ()
  }

  /**
   * Compresses buckets that were not touched since the last call, or any, until so many bytes are
   * free.
   *
   * @return bytes that were freed
   */
  def compress(bytes: Long, everything: Boolean): Long = sweep(bytes) { index =>
    if (everything || !touched(index)) slots.get(index) match {
      case rows: RowBlock if rows.count > 0 => replace(index, rows, Packed.of(rows))
      case _ => ()
    }
    touched(index) = false
  }

  /**
   * Forgets compressed buckets until so many bytes are free.
   *
   * @return bytes that were freed
   */
  def drop(bytes: Long): Long = sweep(bytes) { index =>
    slots.get(index) match {
      case packed: Packed => replace(index, packed, null)
      case _ => ()
    }
  }

  private def sweep(bytes: Long)(visit: Int => Unit): Long = {
    val before = memory.get
    val from = hand
    var visited = 0
    while (visited < buckets && before - memory.get < bytes) {
      visit((from + visited) % buckets)
      visited += 1
    }
    hand = (from + visited) % buckets
    before - memory.get
  }
}

private object BucketSlots {

  /** Bytes of a bucket that is not in memory: its array slots and its check. */
  private val SlotBytes = 16L
}
