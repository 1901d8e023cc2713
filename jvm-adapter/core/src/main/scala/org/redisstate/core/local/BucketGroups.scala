package org.redisstate.core.local

import scala.collection.mutable

/** Groups buckets so that each group is one range of a file. */
private[local] object BucketGroups {

  /** If more than this share of all buckets is wanted, as a divisor, gaps are read too. */
  val WantedShare = 10

  /** Most bytes between two wanted buckets of a group, unless much is wanted. */
  val GapMax: Long = 128L << 10

  /** Most bytes of one range. */
  val RangeMax: Long = 8L << 20

  /**
   * @param wanted numbers of buckets, ascending
   * @param blockBytes approximate bytes of a bucket in the file
   * @param isMuch whether groups extend over any gap
   * @param rangeBytes most bytes of a range for the caller, unless a single bucket has more
   */
  def of(
      wanted: Array[Int],
      blockBytes: Long,
      isMuch: Boolean,
      rangeBytes: Long): Seq[Array[Int]] = {
    val most = math.min(RangeMax, rangeBytes)
    val groups = mutable.ArrayBuffer.empty[Array[Int]]
    var from = 0
    (1 to wanted.length).foreach { i =>
      val ends = i == wanted.length ||
        (!isMuch && (wanted(i) - wanted(i - 1) - 1) * blockBytes > GapMax) ||
        (wanted(i) - wanted(from) + 1) * blockBytes > most
      if (ends) {
        groups += wanted.slice(from, i)
        from = i
      }
    }
    groups.toSeq
  }
}
