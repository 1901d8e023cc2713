package org.redisstate.core.store.previews

import java.lang.management.ManagementFactory

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format._
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{ChangeTrace, KeyHash, Layer}
import org.redisstate.core.protocol.{PartitionClient, PreviewCalls, ShareFull}
import org.redisstate.core.store.resources.Background

/**
 * Sets the previews of one attempt: what it has changed so far, as slices that read as deltas
 * (docs/format.md, section 16). For the thread of [[PreviewTimer]], except where noted.
 *
 * @param parent version that the attempt is based on
 * @param uid of the attempt
 * @param trace its changes
 * @param view what else a slice says of the attempt; for any thread
 * @param everyMs time between two previews
 */
private[store] final class PreviewWriter(
    client: PartitionClient,
    runId: () => String,
    parent: Pin,
    uid: String,
    trace: ChangeTrace,
    view: AttemptView,
    everyMs: Long) {
  import PreviewWriter._

  /** Slices on the server, the newest first. */
  private var slices = List.empty[PreviewSlice]

  /** Changes that the server may not have, older than those of the trace. */
  private var unsent = Option.empty[PreviewSlice]
  private var number, lastNs = 0L
  private var sliceNumber = 0
  private var known = ""
  private var wasSet = false
  private var families = Seq.empty[Family]
  private var hasNewTable = false
  private var workNs = 0L
  private var failed, hasMadeRoom = false
  private val sinceNs = System.nanoTime()

  /** True if a call may have been sent. */
  @volatile private var sent = false
  @volatile private var ended = false
  @volatile private var held = 0L

  /** Ends the previews; for any thread. A call may be under way. */
  def end(): Unit = {
    ended = true
    trace.end()
  }

  /** Returns whether there are no further previews; for any thread. */
  def isOver: Boolean = ended || !view.isOpen

  /** Returns whether the server may have, or get, a preview of the attempt; for any thread. */
  def wasSent: Boolean = sent

  /** Bytes of rows that are held to merge slices, or wait for the next preview; for any thread. */
  def heldBytes: Long = held + trace.heldBytes

  /** Time until the next preview. */
  def pauseMs: Long = {
    val pause = math.max(everyMs, -allowedNs * TimePerWork / 1000000)
    if (failed) math.max(pause, AfterFailureMs) else pause
  }

  /** Work that the time since the attempt began allows, less what was done; below 0 after too much. */
  private def allowedNs: Long = (System.nanoTime() - sinceNs) / TimePerWork - workNs

  /** Sets a preview if rows have changed since the last one, or if it would expire. */
  def run(): Unit = {
    val beganNs = processorNs
    var changes = 0
    try failed = !client.whileAnswering { changes = setIfDue() }
    catch {
      case e: RedisStateException =>
        log.debug("no preview of {}: {}", client.id: Any, e.getMessage: Any)
        failed = true
        sendAgain()
      case _: ShareFull =>
        failed = true
        sendAgain()
        makeRoom()
    } finally {
      val spentNs = processorNs - beganNs
      workNs += spentNs
      cost.learn(changes, spentNs)
    }
  }

  /**
   * Moves segments to a file for the next preview, once, and in another thread: previews of other
   * queries would wait for the folder.
   */
  private def makeRoom(): Unit = if (!hasMadeRoom) {
    hasMadeRoom = true
    Background.helping(s"making room for previews of ${client.id}", inFiles = true) {
      try client.files.makeRoom(1, endsRuns = false): Unit
      catch {
        case e: RedisStateException =>
          log.debug("no room for previews of {}: {}", client.id: Any, e.getMessage: Any)
      }
    }: Unit
  }

  /** @return number of changes that were sent */
  private def setIfDue(): Int = {
    val changes = trace.take(math.max(ChangesMin, cost.changesIn(allowedNs)))
    val isDue = wasSet && System.nanoTime() - lastNs > validMs * 1000000 / 3
    if (trace.isOver) giveUp("its changes are traced no more")
    else if (!changes.isEmpty) add(changes)
    if (unsent.nonEmpty || (isDue && slices.nonEmpty)) set()
    changes.entries
  }

  /** Adds changes to those that are to be sent. */
  private def add(changes: ChangeTrace.Changes): Unit = {
    families = changes.families
    hasNewTable = changes.hasNewTable
    val fresh = new PreviewSlice(changes.layer, changes.tombstones)
    unsent = Some(unsent.fold(fresh)(PreviewSlice.merged(fresh, _)))
  }

  private def set(): Unit = {
    // Before the look at the end: an abort that comes in between knows of the call.
    sent = true
    var tries = 0
    while (tries < TriesMax && !isOver) {
      tries += 1
      unsent.foreach(send)
      number += 1
      val listed = slices.map(slice => slice.number -> slice.entry)
      client.previews.set(runId(), parent, uid, number, known, validMs, listed) match {
        case PreviewCalls.IsSet =>
          known = s"$uid $number"
          wasSet = true
          lastNs = System.nanoTime()
          return
        case PreviewCalls.Other(found, isValid) if isSuperseded(found, isValid) =>
          giveUp(s"another attempt has set one ($found)")
        case PreviewCalls.Other(found, _) =>
          known = found
          sendAgain()
        case PreviewCalls.Incomplete => sendAgain()
        case PreviewCalls.Refused(why) => giveUp(why)
      }
    }
  }

  /** Returns whether a newer attempt has replaced this one, or this one was aborted. */
  private def isSuperseded(found: String, isValid: Boolean): Boolean = {
    val isOwn = found.startsWith(s"$uid ")
    if (isOwn) found.endsWith(" -") else isValid && wasSet
  }

  /** Sends a slice, together with the newest slices of about its size. */
  private def send(fresh: PreviewSlice): Unit = {
    var merged = fresh
    while (isLittle(merged)) {
      merged = PreviewSlice.merged(merged, slices.head)
      slices = slices.tail
    }
    // Until it was sent, all of it counts as missing.
    unsent = Some(merged)
    sliceNumber += 1
    val (entry, fields) = encoded(merged)
    client.previews.stage(identOf(sliceNumber), fields)
    merged.number = sliceNumber
    merged.entry = entry
    slices ::= merged
    unsent = None
    held = slices.iterator.map(_.rows.memoryBytes).sum
  }

  /** Returns whether slices would be many, or as small as those that come. */
  private def isLittle(fresh: PreviewSlice): Boolean = {
    val alike = slices.takeWhile(_.bytes < fresh.bytes * SizeRatio)
    slices.nonEmpty && (alike.size >= AlikeMax || slices.size >= SlicesMax)
  }

  private def encoded(slice: PreviewSlice): (Entry, Seq[EncodedField]) = {
    val rows = slice.rows
    val ordered = KeyHash.of(families).ordered
    val writer = new SegmentWriter(
      identOf(sliceNumber),
      Bucketing.bucketsFor(rows.rows.toLong, rows.usedBytes.toLong))
    rows.foreachBucket(writer.buckets, ordered)(writer.add)
    ordered.toSeq.sorted.foreach(family => writer.addOrdered(family, rows.rowsOf(family)))
    val live = math.max(0, view.live)
    val entry = writer.finish(
      parent.uid,
      live,
      if (hasNewTable) Some(families.sortBy(_.id)) else None,
      slice.tombstones,
      internal = math.min(live, math.max(0, view.internal)),
      highestId = view.highestFamilyId,
      time = if (families.exists(_.ttl)) view.timeS else 0
    )
    (entry, writer.takeFresh())
  }

  private def identOf(slice: Int): String = Segment.sliceIdent(parent.version + 1, uid, slice)

  /** Sends all changes once more, as one slice, with the next preview. */
  private def sendAgain(): Unit = {
    unsent = (unsent.toList ::: slices).reduceOption(PreviewSlice.merged)
    slices = Nil
  }

  /** Ends the previews, and frees what they hold. */
  def giveUp(why: String): Unit = {
    log.debug("no further previews of {}: {}", client.id: Any, why: Any)
    end()
    slices = Nil
    unsent = None
    held = 0
  }

  private def validMs: Long = math.max(ValidMsMin, ValidPauses * pauseMs)
}

private[store] object PreviewWriter {
  private val log = LoggerFactory.getLogger(classOf[PreviewWriter])

  /** Previews of an attempt take at most 1 of so many parts of a processor. */
  private val TimePerWork = 100L

  /** Changes that are sent at once, whatever they cost: the round trips are most of it. */
  private val ChangesMin = 1000L

  /** Estimate of this process, whose compiled code all attempts share; for the thread of `PreviewTimer`. */
  private val cost = new ChangeCost
  private val AfterFailureMs = 1000L
  private val ValidMsMin = 10000L
  private val ValidPauses = 5L
  private val TriesMax = 4

  /** A reader reads so many slices at most. */
  private[store] val SlicesMax = 24
  private val AlikeMax = 6
  private val SizeRatio = 2L

  private val threads = ManagementFactory.getThreadMXBean

  private def processorNs: Long =
    if (threads.isCurrentThreadCpuTimeSupported) threads.getCurrentThreadCpuTime
    else System.nanoTime()

  /**
   * Changes that are sent together.
   *
   * @param tombstones ranges that were removed before the rows were changed
   */
  private final class PreviewSlice(val rows: Layer, val tombstones: Seq[Tombstone]) {
    val bytes: Long = rows.usedBytes.toLong
    var number: Int = 0
    var entry: Entry = _
  }

  private object PreviewSlice {
    def merged(newer: PreviewSlice, older: PreviewSlice): PreviewSlice =
      new PreviewSlice(
        Layer.merge(Seq(newer.rows, older.rows)),
        older.tombstones ++ newer.tombstones)
  }
}

/** State of an attempt that a preview describes; for any thread. */
private[store] trait AttemptView {

  /** Returns whether the attempt still changes rows. */
  def isOpen: Boolean

  /** Live rows, perhaps some changes ago. */
  def live: Long

  /** Live rows of internal families. */
  def internal: Long
  def highestFamilyId: Int

  /** Time of the version in seconds since 1970, if a family has a time to live. */
  def timeS: Long
}
