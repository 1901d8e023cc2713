package org.redisstate.core.protocol.manifest

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.{Entry, Segment}

/**
 * Bound of a partition's memory in Redis (docs/format.md, section 18).
 *
 * @param share most bytes
 * @param bytes that are counted, at least what Redis has
 */
final case class MemoryBound(share: Long, bytes: Long) {
  import MemoryBound._

  /** Bytes to move so that a sixth of the share is free; 0 or less if it is free already. */
  private[protocol] def lacking: Long = bytes - share + spare

  /** Bytes to move in addition, so that the next move is not soon. */
  private[protocol] def spare: Long = share / FreePart

  /** Returns whether a hot run leaves room for the former one, and for deltas. */
  def takesHotRun(run: Entry): Boolean = costOf(run) <= share / HotRunPart

  /** Bytes to move so that the blocks of a segment fit; 0 or less if they fit already. */
  def lackingFor(segment: Entry): Long = bytes + costOf(segment) - share

  /**
   * Returns whether a base of so many bytes stays in Redis: a larger one leaves no room for deltas.
   */
  def takesBase(bytes: Long): Boolean = bytes <= share / 2

  /**
   * Returns whether the first version of a moved state stays in Redis. The share may become
   * smaller, down to the least one, while the move lists further stores.
   */
  def takesMoved(entry: Entry): Boolean = costOf(entry) <= math.min(share, ShareMin) / 2
}

object MemoryBound {
  private[protocol] val Field = "h"
  private val ShareMin = 1L << 20
  private val MetaBytes = 64L << 10
  private val BlockBytes = 120L
  private val SegmentBytes = 300L
  private val FreePart = 6
  private[core] val HotRunPart = 3L
  private val SegmentsMax = 100
  private val Text = "([0-9]{1,18}) ([0-9]{1,18})".r

  /**
   * Returns the share of a partition.
   *
   * @param total option `redisMemory`
   * @param partitions of all stores of the query
   * @throws ConfigException if the share is below the least one
   */
  def shareOf(total: Long, partitions: Int): Long = {
    val share = divided(total, partitions)
    if (share < ShareMin)
      throw new ConfigException(
        s"option 'redisMemory'; $total bytes are too few for the $partitions partitions of this query. Give at least " +
          s"${(ShareMin + MetaBytes) * partitions} bytes, or use fewer partitions.")
    share
  }

  /**
   * Returns the share of a partition while some stores are only planned. Spark may plan more
   * partitions than a store will have: these reduce the share, but never below the least one.
   *
   * @param partitions of the existing stores
   * @param planned partitions of existing and planned stores
   */
  def shareOf(total: Long, partitions: Int, planned: Int): Long =
    math.min(shareOf(total, partitions), math.max(ShareMin, divided(total, planned)))

  private def divided(total: Long, partitions: Int): Long =
    (total - MetaBytes * partitions) / math.max(1, partitions)

  private[protocol] def parse(field: Option[String]): Option[MemoryBound] = field.collect {
    case Text(share, bytes) => MemoryBound(share.toLong, bytes.toLong)
  }

  /** Returns the room that a segment takes, as the scripts count it. */
  private[protocol] def costOf(entry: Entry): Long =
    if (entry.blocks == 0) 0
    else entry.bytes + entry.bytes / 8 + BlockBytes * entry.blocks + SegmentBytes

  /**
   * Returns the segments to move next: history first, then the base, then deltas by age.
   *
   * @param isStuck whether a segment, by its ident, cannot be moved
   */
  private[protocol] def leaving(
      manifest: Map[String, String],
      lacking: Long,
      isStuck: String => Boolean): Seq[Segment] = {
    val opened = ManifestFields.opened("choose what leaves", manifest)
    val named = ManifestFields.segments(manifest)
    val (lineage, bases) = ManifestFields.lineage(named, opened)
    val base = bases.headOption
    def rank(one: Segment): Int =
      if (base.exists(_._2 == one.field)) 1
      else if (lineage(one.field) && one.version > base.fold(0L)(_._1)) 2
      else 0
    val current = named.valuesIterator.filter(_.version <= opened.version)
    val here = (current ++ ManifestFields.aside(manifest)).toSeq
      .distinctBy(_.ident)
      .filter(ManifestFields.isInRedis(manifest))
      .filterNot(one => isStuck(one.ident))
      .sortBy(one => (rank(one), one.version, one.ident))
    val before = here.scanLeft(0L)((bytes, one) => bytes + costOf(one.entry))
    here.zip(before).takeWhile(_._2 < lacking).map(_._1).take(SegmentsMax)
  }
}
