package org.redisstate.core.store.loading

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.{Block, EncodedField, SegmentWriter}

/**
 * Checks of a segment's blocks, which come one by one, in any order, from any thread, and perhaps
 * more than once. After the last one all are compared with the segment's entry. Five bytes a block
 * are kept until then, since a large state has very many.
 */
private[store] final class SegmentChecks(head: SegmentHead) {
  import SegmentChecks._

  private val entry = head.segment.entry
  private val parts = head.header.parts.toArray.sortBy(_._1)

  /** Buckets with parts, ascending, and the first slots of their further parts. */
  private val partBuckets = parts.map(_._1)
  private val partStarts = parts.scanLeft(entry.buckets)(_ + _._2 - 1)

  /** First places of the blocks of ordered families. */
  private val orderedStarts = head.header.ordered.map(_._1)
    .zip(head.header.ordered.scanLeft(partStarts.last)(_ + _._2.length)).toMap
  private val fields = partStarts.last + head.header.ordered.map(_._2.length).sum
  @GuardedBy("this") private var checks = new Array[Int](fields)
  @GuardedBy("this") private var states = new Array[Byte](fields)
  @GuardedBy("this") private var missing = fields

  /** True if all blocks were compared, and are right. */
  @GuardedBy("this") @volatile private var isDone = false

  /**
   * Notes a field that was read.
   *
   * @param block null when there is no such field
   * @return what is wrong with the segment, if this was the last field and something is
   */
  def came(name: String, block: Array[Byte]): Option[String] =
    if (isDone) None
    else synchronized {
      if (isDone) None
      else {
        val place = placeOf(name)
        if (states(place) == Unknown) missing -= 1
        states(place) = if (block == null) Absent else Present
        if (block != null) checks(place) = Block.check(block)
        if (missing == 0) compare() else None
      }
    }

  private def placeOf(name: String): Int = {
    val slash = name.indexOf('/')
    val dot = name.indexOf('.')
    if (slash >= 0) orderedStarts(name.take(slash).toInt) + name.drop(slash + 1).toInt
    else if (dot >= 0) {
      val bucket = java.util.Arrays.binarySearch(partBuckets, name.take(dot).toInt)
      partStarts(bucket) + name.drop(dot + 1).toInt - 1
    } else name.toInt
  }

  private def compare(): Option[String] = {
    val all = names.zipWithIndex.collect {
      case (name, place) if states(place) == Present =>
        val block = new Array[Byte](Block.HeaderBytes)
        Block.setCheck(block, checks(place))
        EncodedField(name, block)
    }.toSeq ++ head.field
    if (all.size != entry.blocks) Some(s"${all.size} of ${entry.blocks} blocks are there")
    else if (SegmentWriter.checksum(all) != entry.checksum) Some("the checksum does not match")
    else {
      isDone = true
      checks = null
      states = null
      None
    }
  }

  /** Names in the order of their slots. */
  private def names: Iterator[String] =
    (0 until entry.buckets).iterator.map(_.toString) ++
      parts.iterator.flatMap { case (b, count) => (1 until count).map(p => s"$b.$p") } ++
      head.header.ordered.iterator.flatMap { case (family, keys) =>
        keys.indices.map(i => s"$family/$i")
      }
}

private object SegmentChecks {
  private val Unknown: Byte = 0
  private val Absent: Byte = 1
  private val Present: Byte = 2
}
