package org.redisstate.core.store

import org.redisstate.core.format.{Block, EncodedField, SegmentWriter}

/**
 * The checks of a segment's blocks, which come one by one, in any order, from any thread, and
 * perhaps more than once. Once all of them came, they are compared with the segment's entry. Five
 * bytes a block are kept until then, since a large state has very many.
 */
private[store] final class SegmentChecks(head: SegmentHead) {
  import SegmentChecks._

  private val entry = head.segment.entry
  private val parts = head.header.parts.toSeq.sortBy(_._1)

  /** First places of further parts by bucket, and of the blocks of ordered families by family. */
  private val partStarts = starts(entry.buckets, parts.map { case (b, count) => b -> (count - 1) })
  private val orderedStarts = starts(
    entry.buckets + parts.map(_._2 - 1).sum,
    head.header.ordered.map { case (family, keys) => family -> keys.length })
  private val fields =
    entry.buckets + parts.map(_._2 - 1).sum + head.header.ordered.map(_._2.length).sum
  private var checks = new Array[Int](fields)
  private var states = new Array[Byte](fields)
  private var missing = fields

  /** Whether all of them were compared, and are right. */
  @volatile private var isDone = false

  private def starts(from: Int, counts: Seq[(Int, Int)]): Map[Int, Int] =
    counts.map(_._1).zip(counts.scanLeft(from)(_ + _._2)).toMap

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
    else if (dot >= 0) partStarts(name.take(dot).toInt) + name.drop(dot + 1).toInt - 1
    else name.toInt
  }

  private def compare(): Option[String] = {
    val all = names.filter(name => states(placeOf(name)) == Present).map { name =>
      val block = new Array[Byte](Block.HeaderBytes)
      Block.setCheck(block, checks(placeOf(name)))
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
