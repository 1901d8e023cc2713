package org.redisstate.core.local

import scala.collection.mutable

/** Groups of buckets that one range of a file has. */
private[local] object BucketGroups {

  /** Share of all buckets, as a divisor, from which on the gaps between wanted ones are read too. */
  val WantedShare = 10

  /** Neighbours are read together if less than this lies between them. */
  val GapMax: Long = 128L << 10

  /** Most bytes of one range. */
  val RangeMax: Long = 8L << 20

  /**
   * @param wanted ascending
   * @param blockBytes of a bucket in the file, about
   * @param isMuch whether gaps do not end a group
   * @param rangeBytes most bytes of a range here, unless a single bucket has more
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
