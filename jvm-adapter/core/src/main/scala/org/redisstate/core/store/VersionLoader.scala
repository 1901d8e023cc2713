package org.redisstate.core.store

import scala.collection.mutable

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{FormatException, InternalException}
import org.redisstate.core.format.{Block, Segment}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Base, Content, LayerSizes, RowValidator}
import org.redisstate.core.local.blocks.Room
import org.redisstate.core.protocol.{Opened, PartitionClient, SegmentGone}
import org.redisstate.core.store.loading.{
  ContentLoader,
  Purpose,
  SegmentHead,
  SegmentLoader,
  WholeSegment
}
import org.redisstate.core.store.resources.{Background, StoreCounters}

/**
 * Builds versions of one partition from their segments.
 *
 * @param isClosed whether the store has no use for rows that are read ahead
 */
private[store] final class VersionLoader(
    client: PartitionClient,
    validator: RowValidator,
    counters: StoreCounters,
    room: Room,
    sizes: LayerSizes,
    isClosed: () => Boolean) {
  import VersionLoader._

  /** Returns a reader of single segments. */
  def segments(): SegmentLoader = new SegmentLoader(client.segments, validator, counters, room)

  /**
   * Builds a version from what `open` listed; starts again when maintenance replaces a segment
   * under the load.
   */
  def load(
      first: Opened,
      held: List[LocalVersion],
      purpose: Purpose): LocalVersion = {
    var opened = first
    var tries = 0
    while (true) {
      try return build(opened, if (tries == 0) held else Nil, purpose)
      catch {
        case e: SegmentGone =>
          val again = client.reopen(first.pin)
          val unchanged = again.segments.exists(s => s == e.segment)
          tries += 1
          if (unchanged || tries > LoadsMax) {
            throw e.lost(s"load version ${first.pin.version} of ${client.id}")
          }
          opened = again
      }
    }
    throw new IllegalStateException
  }

  private def build(
      opened: Opened,
      held: List[LocalVersion],
      purpose: Purpose): LocalVersion = {
    val loader = segments()
    val start = held.find(v => v.pin == opened.start && v.pin.version > 0)
    if (start.isEmpty && opened.start.version > 0) {
      throw new InternalException(
        s"load version ${opened.pin.version} of ${client.id}: Redis builds on version " +
          s"${opened.start.version}, which this executor does not have.")
    }
    var table = start.fold(FamilyTable.Empty)(_.table)
    var history = start.fold(History.Empty)(_.history)
    var bottom: Option[WholeSegment] = None
    val above = mutable.ArrayBuffer.empty[WholeSegment]
    val isLazy = purpose == Purpose.Keep && start.isEmpty
    loader.heads(opened.segments.reverse, all = isLazy).foreach { head =>
      val entry = head.segment.entry
      val alone = head.segment.isSnapshot || entry.complete
      val next = table.after(head.header)
      checkExpiry(head, table, next)
      table = next
      if (alone) above.clear()
      if (alone) bottom = None
      val whole = WholeSegment(head, table.families)
      if (head.segment.isSnapshot) bottom = Some(whole) else above += whole
      history = historyAfter(history, head.segment)
    }
    val isAlone = bottom.nonEmpty || above.headOption.exists(_.head.segment.entry.complete)
    val below = if (isAlone) None else start.map(_.content)
    val deltas = above.filter(_.head.segment.entry.blocks > 0).toSeq
    counters.deltasLoaded.addAndGet(deltas.size.toLong)
    val live = opened.segments.headOption
      .map(newest => LiveRows.of(newest.entry))
      .orElse(start.map(_.live))
      .getOrElse(LiveRows.None)
    val content = new ContentLoader(loader, room, sizes)
      .over(below, bottom, deltas, live.all, purpose).getOrElse(reload(opened.pin))
    val isOnce = purpose == Purpose.Stream
    if (isOnce) content.base.counted(false)
    else if (purpose != Purpose.Pass && !below.exists(_.base eq content.base))
      readAhead(content.base)
    new LocalVersion(
      opened.pin,
      live,
      table,
      content,
      history,
      if (isOnce) reloadOnce else reload,
      opened.time.orElse(start.map(_.timeS)).getOrElse(0))
  }

  private def historyAfter(below: History, segment: Segment): History = {
    val (version, bytes) = (segment.version, segment.entry.bytes)
    if (segment.isBase) History(bytes, Nil)
    else
      segment.over.fold(below.plus(DeltaSize(version, bytes))) { base =>
        below.copy(hotRun = Some(HotRunSize(version, bytes, (version - base.version).toInt)))
      }
  }

  /** Compares the families of a segment that expire with those below it, and with its time. */
  private def checkExpiry(head: SegmentHead, below: FamilyTable, table: FamilyTable): Unit = {
    val entry = head.segment.entry
    val isAlone = head.segment.isSnapshot || entry.complete
    val found =
      if (!isAlone && !below.expiresLike(table))
        Some("a family gets or loses a time to live, but the delta is not complete")
      else if (table.families.exists(_.ttl) != entry.time > 0) Some(
        "its entry has a time without a family that expires, or has none though a family expires")
      else None
    found.foreach { what =>
      throw new FormatException(s"${head.segment.ident} of ${client.id}: $what.${Block.Advice}")
    }
  }

  private def readAhead(base: Base): Unit =
    Background.helping(s"read-ahead of ${client.id}", base.isInFiles) {
      try client.whileAnswering { base.loadAll(isClosed): Unit }: Unit
      catch {
        case _: SegmentGone =>
          log.info("read-ahead of {} ended: its snapshot was replaced", client.id)
      }
    }

  /** The rows of a version, as Redis has them now. */
  def reload(pin: Pin): Content =
    Room.missing(room)(load(client.reopen(pin, client.isBounded), Nil, Purpose.Check).content)
  private def reloadOnce(pin: Pin): Content =
    load(client.reopen(pin), Nil, Purpose.Stream).content

  /** The rows of a version bucket by bucket from Redis, for one pass. */
  def withoutLayers(pin: Pin): Content = {
    val rows = load(client.reopen(pin, client.isBounded), Nil, Purpose.Pass).content
    rows.base.counted(false)
    rows
  }
}

private object VersionLoader {
  private val log = LoggerFactory.getLogger(classOf[VersionLoader])
  private val LoadsMax = 5
}
