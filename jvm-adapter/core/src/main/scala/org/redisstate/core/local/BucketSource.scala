package org.redisstate.core.local

import org.redisstate.core.format.RowBlock
import org.redisstate.core.local.blocks.Room

/** Reads buckets of a base that are still in Redis only. */
trait BucketSource {

  /** Rows of the buckets [from, until), validated; called from any thread. */
  def read(from: Int, until: Int): Array[RowBlock]

  /** Approximate bytes of a bucket while it is read. */
  def bucketBytes: Long = BucketSource.BytesMax

  /** Bytes of rows that are kept for reads to come. */
  def heldBytes: Long = 0L
}

object BucketSource {

  /** Buckets without rows. */
  val Empty: BucketSource = new BucketSource {
    override def read(from: Int, until: Int): Array[RowBlock] =
      Array.fill(until - from)(RowBlock.Empty)
  }

  /** Most bytes of a bucket while it is read. */
  val BytesMax: Long = Room.BlockBytesMax

  /**
   * Estimated bytes of a bucket that was never seen: buckets fill up to the maximum and are then
   * split.
   */
  val AverageBytes: Long = 12L << 10
}
