package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.concurrent.Future
import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors._
import org.redisstate.core.format.{EncodedField, Segment}
import org.redisstate.core.ids.{Keys, PartitionId, Pin, RegisteredRun}
import org.redisstate.core.places.FileFolders
import org.redisstate.core.protocol.manifest.Stored

/**
 * Runs the steps of docs/format.md, sections 6 to 8, for one partition. Thread-safe; keeps only
 * counters.
 *
 * @param log of the query; None where nobody keeps one, so that every registered run may go back
 * @param folders of block files; None where the caller reads no rows
 */
final class PartitionClient(
    backend: RedisBackend,
    val id: PartitionId,
    settings: ProtocolSettings,
    registry: RunRegistry,
    log: Option[CommitLog] = None,
    folders: Option[FileFolders] = None) {
  import PartitionCalls.words
  import PartitionClient._

  private val calls = new PartitionCalls(backend, id)
  private val meta = calls.meta
  private val retention = new RetentionUpkeep(calls, new PinUpkeep(backend, calls))

  /** Blocks of the partition's segments. */
  val segments: SegmentIo =
    new SegmentIo(calls, settings.signer, folders, files.roomMaker(_))

  /** Snapshots of the partition. */
  val snapshots: SnapshotCalls = new SnapshotCalls(calls, segments, settings.keepMs)

  /** Hot runs of the partition. */
  val hotRuns: HotRuns = new HotRuns(calls, segments)

  /** Files of the partition. */
  val files: PartitionFiles = new PartitionFiles(calls, segments, hotRuns, folders, settings.signer)

  /** Most bytes of the partition in Redis, 0 for no bound; None leaves it as it is. */
  @volatile private var share = Option.empty[Long]

  /** Previews of batches that run. */
  val previews: PreviewCalls = new PreviewCalls(calls, segments)
  def format: CheckpointFormat = settings.format
  def roundTrips: AtomicLong = calls.roundTrips
  def bytesSent: AtomicLong = calls.bytesSent
  def bytesRead: AtomicLong = calls.bytesRead
  def times: CallTimes = calls.times
  def filed: FileCounters = calls.filed

  /** Calls of this process to the server that were sent again, for all partitions. */
  def retries: Long = backend.retries.get

  /**
   * @param version None for the newest confirmed one
   * @param uid of the attempt that wrote it; None for the one on the living timeline
   * @param withTime whether the caller writes rows with a time to live on top of it
   * @param hotRuns whether a hot run that is whole may take the place of the deltas that it merges
   */
  def open(
      runId: String,
      version: Option[Long],
      uid: Option[String],
      cached: Seq[Pin],
      withTime: Boolean = false,
      hotRuns: Boolean = false): Opened = {
    val (what, reply) = askToOpen(runId, version, uid, cached, withTime, hotRuns)
    backend.shortenPause(meta)
    val found =
      try Some(opened(what, reply, version, withTime)).filterNot(one =>
          segments.isLeftOut(one.segments))
      catch {
        case e: FormatException if hotRuns && HotRuns.listsDamaged(reply) =>
          logger.warn("{}: opened without a hot run: {}", what: Any, e.getMessage: Any)
          None
      }
    found.getOrElse(open(runId, version, uid, cached, withTime, hotRuns = false))
  }

  /**
   * Opens a version for a store that is loaded empty: it need not be there.
   *
   * @return Left with the time of the next version, see [[Opened.timeS]], if it is not there
   */
  def openIfThere(
      runId: String,
      version: Long,
      withTime: Boolean): Either[Long, Opened] = {
    val (what, reply) = askToOpen(runId, Some(version), None, Nil, withTime)
    reply match {
      case Seq("STATE_LOST" | "VERSION_EXPIRED", _, _, rest @ _*) =>
        Left(timeIn(what, rest, withTime))
      case _ => Right(opened(what, reply, Some(version), withTime))
    }
  }

  private def askToOpen(
      runId: String,
      version: Option[Long],
      uid: Option[String],
      cached: Seq[Pin],
      withTime: Boolean,
      hotRuns: Boolean = false): (String, Seq[String]) = {
    val wanted = version.fold("opened")(_.toString)
    val args = Seq(runId, wanted, uid.getOrElse("")) ++
      cached.take(CachedMax).flatMap(p => Seq(p.version.toString, p.uid)) ++
      Option((if (withTime) AsksTime else "") + (if (hotRuns) AsksHotRuns else "")).filter(
        _.nonEmpty)
    val what = s"open version $wanted of $id"
    what -> words(times.opening(calls.script(what, Script.Open, args)))
  }

  private def opened(
      what: String,
      reply: Seq[String],
      version: Option[Long],
      withTime: Boolean): Opened =
    reply match {
      case Seq("EMPTY", rest @ _*) =>
        Opened(Pin.Empty, held = false, 0, 0, Pin.Empty, Nil, timeIn(what, rest, withTime))
      case Seq("OK", at, found, held, opened, floor, start, startUid, rest @ _*) =>
        val words = if (withTime) rest.drop(1) else rest
        val listed = words.grouped(3).collect { case Seq(field, entry, place) =>
          Segment.parse(field, entry, place)
        }.toSeq
        segments.listed(listed)
        Opened(
          Pin(Stored.number(what, at), found),
          held == "1",
          Stored.number(what, opened),
          Stored.number(what, floor),
          Pin(Stored.number(what, start), startUid),
          listed,
          timeIn(what, rest, withTime)
        )
      case _ => throw refusal(what, reply, version.getOrElse(0))
    }

  private def timeIn(what: String, rest: Seq[String], isAsked: Boolean): Long =
    if (isAsked) Stored.number(what, rest.headOption.getOrElse("")) else 0

  /** Lists a version again that was opened before; changes nothing. */
  def reopen(pin: Pin, hotRuns: Boolean = false): Opened =
    open("", Some(pin.version), Some(pin.uid), Nil, hotRuns = hotRuns)

  /** Sets the share that the partition gets when it is acquired, in bytes; 0 for no bound. */
  def bindTo(bytes: Long): Unit = share = Some(bytes)

  /** Returns whether the partition has a bound, or will have one, so that it may have a hot run. */
  def isBounded: Boolean = settings.isBounded || share.exists(_ > 0)

  /**
   * Acquires the partition for a run that will write on top of `pin`. A version above 0 without a
   * uid is missing; only a complete delta can follow it.
   */
  def acquire(run: RegisteredRun, pin: Pin): Unit = {
    val what = s"acquire $id at version ${pin.version}"
    var holder = run
    var unsure = if (log.isEmpty) NoLog else ""
    var tries = 1
    while (true) {
      val args = (acquireArgs(holder, pin) :+ unsure) ++ share.map(_.toString)
      words(calls.script(what, Script.Acquire, args)) match {
        case Seq("OK", dropped) =>
          if (dropped != "0")
            logger.info("{}: {} segments of other timelines were dropped", what, dropped)
          return
        case Seq("UNSURE", _, by) if log.exists(_.hasBatchFrom(pin.version)) =>
          throw Refusal.secondStart(what, by, pin.version)
        case Seq("UNSURE", opened, by) if tries < AcquireTriesMax => unsure = s"$opened $by"
        case Seq("REOPEN", _) if tries < AcquireTriesMax => openAgain(run, pin)
        // With its own epoch there the run held the partition, and lost it to one that contended.
        case Seq("FENCED", "epoch", found, _)
            if tries <= ReregisterMax && Stored.number(what, found) > holder.epoch &&
              registry.isNewest(run.id) =>
          val above = Stored.number(what, found)
          holder = registry.register(run.id, run.byDriver, above, Map.empty)
        case reply => throw refusal(what, reply, pin.version)
      }
      tries += 1
    }
  }

  /**
   * Does work for which no task waits, or skips it while the partition's server is silent. Must not
   * be nested.
   *
   * @return whether the work was done
   */
  def whileAnswering(work: => Unit): Boolean = calls.whileAnswering(work)

  /** Background work in the order of the calls; none waits behind the folder of another query. */
  def later(work: => Unit): Future[_] = backend.later(if (isBounded) id.gen else "")(work)

  /**
   * Publishes the version after `parent`. Fields that are not yet staged are sent in the same
   * transaction.
   *
   * @param delta its place is a file only if it is complete; it has no fields in Redis then
   * @param rest fields that were not staged
   * @param all every field of the delta, needed if the server lost some of them
   */
  def commit(
      run: RegisteredRun,
      parent: Pin,
      delta: Segment,
      rest: Seq[EncodedField],
      all: => Seq[EncodedField]): Unit = {
    val what = s"commit version ${delta.version} of $id"
    val (ident, entry) = (delta.ident, delta.entry)
    var last = segments.stageButLast(what, ident, rest, entry.blocks)
    var tries = 1
    val room = files.roomMaker(ident)
    while (true) {
      val (staged, published) = publish(what, run, parent, delta, last)
      val refused = Seq(staged, published).find(_.headOption.contains(RoomMaker.Refused))
      published match {
        case Seq("OK") | Seq("ALREADY") => return
        // Blocks that came before are still there, unless it answered INCOMPLETE.
        case Seq(RoomMaker.Refused | "INCOMPLETE", _*) if refused.nonEmpty =>
          refused.foreach(room.make(what, _))
          if (!published.headOption.contains(RoomMaker.Refused))
            last = segments.stageButLast(what, ident, all, entry.blocks)
          tries -= 1
        case reply if tries >= PublishTriesMax => throw refusal(what, reply, parent.version)
        case Seq("REOPEN", _) =>
          logger.warn(
            "{}: the server forgot that this run opened the version (a fail-over?); opening again",
            what)
          reopen(run, parent)
        case Seq("INCOMPLETE", found) =>
          logger.warn(
            "{}: the server has {} of {} blocks; sending all again",
            what,
            found,
            entry.blocks.toString)
          last = segments.stageButLast(what, ident, all, entry.blocks)
        case reply => throw refusal(what, reply, parent.version)
      }
      tries += 1
    }
  }

  /**
   * Drops what an attempt staged. Never throws: what it cannot drop expires.
   *
   * @param hasPreviews whether the attempt may have set previews, or have sent one
   */
  def abort(ident: String, hasPreviews: Boolean = false): Unit =
    try {
      val args = (ident +: Option.when(hasPreviews)(EndsPreviews).toSeq).map(_.getBytes(US_ASCII))
      val abort = Script.Abort.byText(Seq(meta, Keys.segment(id, ident)), args)
      roundTrips.incrementAndGet()
      try backend.transaction(s"abort $ident of $id", Seq(abort))
      catch {
        case _: FullException =>
          calls.script(s"abort $ident of $id", Script.Abort, Seq(ident), args)
      }
    } catch {
      case e: RedisStateException =>
        logger.info(
          "abort {} of {} was not possible, its blocks expire by themselves: {}",
          ident,
          id,
          e.getMessage)
    }

  /** Drops segments that no retained version needs, and ends expired pins. */
  def retain(): RetainReport = retention.run()

  /** Sets the expiry of every key to what the settings say: renewed, or none. */
  def renew(): Unit = {
    calls.script(s"renew $id", Script.Renew, Seq(settings.keepMs.toString))
    ()
  }

  private def publish(
      what: String,
      run: RegisteredRun,
      parent: Pin,
      delta: Segment,
      last: Seq[EncodedField]): (Seq[String], Seq[String]) = {
    val (ident, entry) = (delta.ident, delta.entry)
    // Unless these are all blocks, the key of the delta has others already.
    val isApart = last.nonEmpty && last.size == entry.blocks
    val keys = Seq(meta, Keys.segment(id, ident)) ++ Option.when(isApart)(Keys.staged(id, ident))
    val args = Seq(
      run.id,
      run.epoch.toString,
      parent.version.toString,
      parent.uid,
      delta.uid,
      entry.blocks.toString,
      entry.text,
      ProtocolSettings.DroppedTtlMs.toString,
      settings.format.number.toString,
      settings.keepMs.toString
    ) ++ SegmentPlaces.placed(delta)
    val apart = if (isApart) segments.apart(ident, last) else Nil
    def commands(run: (Script, Seq[Array[Byte]]) => Command) = {
      val stages =
        if (isApart || last.isEmpty) apart
        else Seq(run(Script.Stage, segments.stageArgs(ident, ident, last)))
      stages :+ run(Script.Publish, args.map(bytes))
    }
    val byHash = commands((script, words) => script.byHash(keys, words))
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(byHash.iterator.map(_.bytes).sum)
    val replies = times.timed(
      backend.transaction(
        what,
        byHash,
        Some(isPublished),
        commands((script, words) => script.byText(keys, words))),
      waits = backend.durability.asked)
    backend.endPause(meta)
    val staged =
      if (isApart) Seq("OK") else replies.init.headOption.fold(Seq("OK"))(words)
    staged match {
      case Seq("OK") | Seq("PUBLISHED") | Seq(RoomMaker.Refused, _*) => ()
      case other => throw refusal(what, other, parent.version)
    }
    (staged, words(replies.last))
  }

  private def reopen(run: RegisteredRun, parent: Pin): Unit = if (parent.isAbsent)
    acquire(run, parent)
  else {
    val opened = openAgain(run, parent)
    if (opened.pin != parent) {
      throw new FencedException(
        s"commit on version ${parent.version} of $id: the version that this attempt " +
          "read was replaced. Spark runs the task again.")
    }
    if (!opened.held) acquire(run, parent)
  }

  /** Opens the version again. In format 1 a replaced attempt must not come back. */
  private def openAgain(run: RegisteredRun, pin: Pin): Opened = {
    val uid = if (settings.format == CheckpointFormat.V2) Some(pin.uid) else None
    open(run.id, Some(pin.version), uid, Nil)
  }

  private def acquireArgs(run: RegisteredRun, pin: Pin): Seq[String] = Seq(
    run.id,
    run.epoch.toString,
    if (run.byDriver) "1" else "0",
    pin.version.toString,
    pin.uid,
    settings.versionsToRetain.toString,
    ProtocolSettings.DroppedTtlMs.toString,
    settings.format.number.toString,
    settings.keepMs.toString
  )

  private def refusal(what: String, reply: Seq[String], version: Long): RedisStateException =
    Refusal.of(what, reply, version, id)
}

object PartitionClient {
  private val logger = LoggerFactory.getLogger(classOf[PartitionClient])
  private val CachedMax = 4
  private val ReregisterMax = 2
  private[core] val AcquireTriesMax = 5
  private val NoLog = "-"
  private val AsksTime = "t"
  private val AsksHotRuns = "r"
  private val EndsPreviews = "u"
  private[core] val PublishTriesMax = 5

  private def bytes(text: String): Array[Byte] = Command.bytes(text)

  private def isPublished(replies: Seq[AnyRef]): Boolean =
    PartitionCalls.words(replies.last) match {
      case Seq("OK") | Seq("ALREADY") => true
      case _ => false
    }
}
