package org.redisstate.core.protocol

import scala.util.Try

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.{EncodedField, Entry, Segment}
import org.redisstate.core.ids.{Keys, Pin}

/**
 * Bound of a partition's memory in Redis (docs/format.md, section 18).
 *
 * @param share most bytes
 * @param bytes that are counted, at least what Redis has
 */
final case class MemoryBound(share: Long, bytes: Long) {
  import MemoryBound._

  /** Bytes that have to leave so that a sixth of the share is free; 0 or less if it is. */
  private[protocol] def lacking: Long = bytes - share + spare

  /** Bytes that leave in addition, so that the next time is far. */
  private[protocol] def spare: Long = share / FreePart

  /** Returns whether a hot run leaves room for the former one, and for deltas. */
  def takesHotRun(run: Entry): Boolean = costOf(run) <= share / HotRunPart

  /** Bytes that have to leave so that the blocks of a segment find room; 0 or less if they do. */
  def lackingFor(segment: Entry): Long = bytes + costOf(segment) - share

  /** Returns whether a base of so many bytes stays in Redis: a larger one leaves too little for deltas. */
  def takesBase(bytes: Long): Boolean = bytes <= share / 2

  /**
   * Returns whether the first version of a moved state stays in Redis. The share may still become
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
   * partitions than a store will have, so these make the share smaller, but never too small.
   *
   * @param partitions of the stores that exist
   * @param planned partitions of these and of the planned stores
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
   * Returns the segments that leave next: history first, then the base, then deltas by age.
   *
   * @param isStuck whether a segment, by its ident, cannot leave
   */
  private[protocol] def leaving(
      manifest: Map[String, String],
      lacking: Long,
      isStuck: String => Boolean): Seq[Segment] = {
    import SegmentPlaces.{AsidePrefix, PlacePrefix}
    val named = manifest.collect {
      case (field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
        field -> Segment.parse(field, entry)
    }
    val aside = manifest.iterator.collect {
      case (name, value) if name.startsWith(AsidePrefix) && value.contains(' ') =>
        val (of, entry) = value.splitAt(value.indexOf(' '))
        Segment.parse(of, entry.drop(1))
    }
    val opened = manifest.get("o").map(Stored.number("choose what leaves", _)).getOrElse(0L)
    val (lineage, bases) = Retention.lineageOf(named, Pin(opened, manifest.getOrElse("ou", "")))
    val base = bases.headOption
    def rank(one: Segment): Int =
      if (base.exists(_._2 == one.field)) 1
      else if (lineage(one.field) && one.version > base.fold(0L)(_._1)) 2
      else 0
    val here = (named.valuesIterator.filter(_.version <= opened) ++ aside).toSeq
      .distinctBy(_.ident)
      .filter(one => one.entry.blocks > 0 && !manifest.contains(PlacePrefix + one.ident))
      .filterNot(one => isStuck(one.ident))
      .sortBy(one => (rank(one), one.version, one.ident))
    val before = here.scanLeft(0L)((bytes, one) => bytes + costOf(one.entry))
    here.zip(before).takeWhile(_._2 < lacking).map(_._1).take(SegmentsMax)
  }
}

/**
 * Hot runs of a bounded partition: the rows that changed since a base, in Redis (docs/format.md,
 * section 18). No version needs them.
 */
final class HotRuns private[protocol] (calls: PartitionCalls, segments: SegmentIo) {
  import PartitionCalls.words

  private val id = calls.id

  /**
   * Stages the blocks of a hot run and enters it; the former one goes. One that finds no room makes
   * the former one go all the same, so that the next one finds some.
   *
   * @param over base that it stands on
   * @return false when it was not wanted any more, or has no room
   */
  def add(run: Segment, over: Pin, fields: Seq[EncodedField]): Boolean =
    try {
      segments.stageSnapshot(run.ident, fields, isBounded = true)
      enter(run, over)
    } catch {
      case _: ShareFull =>
        unstage(run.ident)
        drop(): Unit
        false
      case e: Throwable =>
        Try(unstage(run.ident)).failed.foreach(e.addSuppressed)
        throw e
    }

  private def unstage(ident: String): Unit =
    calls.commands(
      s"drop blocks of $ident of $id",
      Seq(Command("UNLINK", Keys.staged(id, ident)))): Unit

  private def enter(run: Segment, over: Pin): Boolean = {
    val what = s"add the hot run of version ${run.version} of $id"
    val args = Seq(
      run.version.toString,
      run.uid,
      run.entry.ref,
      over.version.toString,
      over.uid,
      run.entry.text)
    val keys = Seq(Keys.segment(id, run.ident), Keys.staged(id, run.ident))
    RoomMaker.isEntered(
      what,
      words(calls.keyed(what, Script.HotRun, keys, args.map(Command.bytes))))
  }

  /** Drops the hot runs; returns their number. */
  def drop(): Int = {
    val what = s"drop the hot runs of $id"
    words(calls.script(what, Script.HotRun, Nil)) match {
      case Seq("OK", dropped) => Stored.number(what, dropped).toInt
      case reply => throw Refusal.of(what, reply, 0, id)
    }
  }
}

private[protocol] object HotRuns {

  /** Prefix of the manifest fields of hot runs. */
  val Prefix = "r:"
}
