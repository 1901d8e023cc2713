package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}
import java.util.concurrent.Future
import java.util.concurrent.atomic.AtomicLong

import scala.annotation.tailrec
import scala.collection.mutable

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors._
import org.redisstate.core.format.{EncodedField, Entry, Segment}
import org.redisstate.core.ids.{Keys, PartitionId, Pin, RegisteredRun}

/**
 * The steps of docs/format.md, sections 6 to 8, for one partition. Thread-safe; keeps nothing but counters.
 *
 * @param log of the query; None where nobody keeps one, so that every registered run may go back
 */
final class PartitionClient(
    backend: RedisBackend,
    val id: PartitionId,
    settings: ProtocolSettings,
    registry: RunRegistry,
    log: Option[CommitLog] = None) {
  import PartitionClient._

  private val meta = Keys.meta(id)
  def format: CheckpointFormat = settings.format
  val roundTrips: AtomicLong = new AtomicLong
  val bytesSent: AtomicLong = new AtomicLong
  val bytesRead: AtomicLong = new AtomicLong

  /**
   * @param version None for the newest confirmed one
   * @param uid of the attempt that wrote it; None for the one on the living timeline
   */
  def open(
      runId: String,
      version: Option[Long],
      uid: Option[String],
      cached: Seq[Pin]): Opened = {
    val wanted = version.fold("opened")(_.toString)
    val args = Seq(runId, wanted, uid.getOrElse("")) ++
      cached.take(CachedMax).flatMap(p => Seq(p.version.toString, p.uid))
    val what = s"open version $wanted of $id"
    words(run(what, Script.Open, args)) match {
      case Seq("EMPTY") => Opened(Pin.Empty, held = false, 0, 0, Pin.Empty, Nil)
      case Seq("OK", at, found, held, opened, floor, start, startUid, segments @ _*) =>
        Opened(
          Pin(Stored.number(what, at), found),
          held == "1",
          Stored.number(what, opened),
          Stored.number(what, floor),
          Pin(Stored.number(what, start), startUid),
          segments.grouped(2).collect { case Seq(field, entry) =>
            Segment.parse(field, entry)
          }.toSeq
        )
      case reply => throw refusal(what, reply, version.getOrElse(0))
    }
  }

  /** Looks again at exactly the version that was opened before; changes nothing. */
  def reopen(pin: Pin): Opened = open("", Some(pin.version), Some(pin.uid), Nil)

  /**
   * Takes the partition for a run that is about to write on top of `pin`; a version above 0 without
   * a uid is one that is not there, on which only a complete delta can stand.
   */
  def acquire(run: RegisteredRun, pin: Pin): Unit = {
    val what = s"acquire $id at version ${pin.version}"
    var holder = run
    var unsure = if (log.isEmpty) NoLog else ""
    var tries = 1
    while (true) {
      words(this.run(what, Script.Acquire, acquireArgs(holder, pin) :+ unsure)) match {
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

  /** Work for this partition's server in the background, in the order of the calls. */
  def later(work: => Unit): Future[_] = backend.later(work)

  /** Stores blocks of a segment ahead of its publication; without fields, its heartbeat. */
  def stage(ident: String, field: String, fields: Seq[EncodedField]): Unit = {
    val what = s"stage blocks of $ident of $id"
    val chunks = if (fields.isEmpty) Seq(fields) else chunked(fields)
    chunks.foreach { chunk =>
      run(what, Script.Stage, Seq(ident), stageArgs(ident, field, chunk))
    }
  }

  /**
   * Publishes the version after `parent`. The fields not yet staged go along in the same transaction.
   *
   * @param rest fields that were not staged
   * @param all every field of the delta, asked for when the server lost some of them
   */
  def commit(
      run: RegisteredRun,
      parent: Pin,
      uid: String,
      entry: Entry,
      rest: Seq[EncodedField],
      all: => Seq[EncodedField]): Unit = {
    val ident = Segment.deltaIdent(parent.version + 1, uid)
    val what = s"commit version ${parent.version + 1} of $id"
    var last = stageButLast(what, ident, rest)
    var tries = 1
    while (true) {
      words(publish(what, run, parent, uid, entry, ident, last)) match {
        case Seq("OK") | Seq("ALREADY") => return
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
          last = stageButLast(what, ident, all)
        case reply => throw refusal(what, reply, parent.version)
      }
      tries += 1
    }
  }

  /** Drops what an attempt staged. Never throws: what it cannot drop expires. */
  def abort(ident: String): Unit =
    try {
      val abort =
        Script.Abort.byText(Seq(meta, Keys.segment(id, ident)), Seq(ident.getBytes(US_ASCII)))
      roundTrips.incrementAndGet()
      try backend.transaction(s"abort $ident of $id", Seq(abort))
      catch {
        case _: FullException =>
          run(s"abort $ident of $id", Script.Abort, Seq(ident), Seq(bytes(ident)))
      }
    } catch {
      case e: RedisStateException =>
        logger.info(
          "abort {} of {} was not possible, its blocks expire by themselves: {}",
          ident,
          id,
          e.getMessage)
    }

  /**
   * Blocks of a segment, null where there is no such field; replies of about 1 MiB each.
   *
   * @throws SegmentGone when the segment is not whole any more: open again
   */
  def fetch(segment: Segment, fields: Seq[String]): Seq[Array[Byte]] =
    pieces(segment, fields).flatMap(piece => fetch(Seq(piece)).head).toVector

  /** Fields of a segment in groups whose blocks make a reply of about 1 MiB. */
  def pieces(segment: Segment, fields: Seq[String]): Seq[Piece] = {
    val average = math.max(1L, segment.entry.bytes / math.max(1, segment.entry.blocks))
    val perPiece = math.max(1L, math.min(ChunkBytesMax / average, FieldsMax)).toInt
    fields.grouped(perPiece).map(Piece(segment, _, average)).toSeq
  }

  /** As `fetch` of a segment, all pieces in one round trip. */
  def fetch(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] =
    pieces.zip(fetchStored(pieces)).map { case (piece, values) => opened(piece, values) }

  /** As `fetch`, signatures included where there are any. */
  def fetchStored(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] = {
    roundTrips.incrementAndGet()
    val commands = pieces.flatMap { piece =>
      val key = Command.bytes(Keys.segment(id, piece.segment.ident))
      // HLEN comes second: if the key vanishes in between, the missing fields cannot pass for empty buckets.
      Seq(
        Command("HMGET", (key +: piece.fields.map(Command.bytes)).toArray),
        Command("HLEN", Array(key)))
    }
    val replies = backend.call(s"read ${pieces.head.segment.ident} of $id", commands)
    pieces.zip(replies.grouped(2).toSeq).map {
      case (piece, Seq(found: Seq[_], blocks: java.lang.Long))
          if blocks == piece.segment.entry.blocks.toLong =>
        val values = found.asInstanceOf[Seq[Array[Byte]]]
        bytesRead.addAndGet(values.iterator.filter(_ != null).map(_.length.toLong).sum)
        values
      case (piece, _) => throw new SegmentGone(piece.segment)
    }
  }

  /** Stores blocks of a snapshot of `pin` ahead of its entry. */
  def stageSnapshot(pin: Pin, ident: String, fields: Seq[EncodedField]): Unit =
    stage(ident, Segment.snapshotField(pin.version, pin.uid), fields)

  /** As the other, with its blocks. */
  def addSnapshot(pin: Pin, writer: String, fields: Seq[EncodedField], entry: Entry): Boolean = {
    stageSnapshot(pin, Segment.snapshotIdent(pin.version, writer), fields)
    addSnapshot(pin, writer, entry)
  }

  /** Enters a snapshot of `pin` whose blocks are staged; false when it was not wanted any more. */
  def addSnapshot(pin: Pin, writer: String, entry: Entry): Boolean = {
    val ident = Segment.snapshotIdent(pin.version, writer)
    val what = s"add the snapshot of version ${pin.version} of $id"
    val args = Seq(
      pin.version.toString,
      pin.uid,
      writer,
      entry.blocks.toString,
      entry.text,
      settings.keepMs.toString)
    words(run(what, Script.Snapshot, Seq(ident), args.map(bytes))) match {
      case Seq("OK") | Seq("ALREADY") => true
      case reply =>
        logger.info("{}: {}", what, reply.mkString(" "))
        false
    }
  }

  /** Takes out of the manifest what no kept version needs, few segments with each call. */
  def retain(): RetainReport = {
    val what = s"retention of $id"
    @tailrec
    def carryOut(tries: Int, before: RetainReport): RetainReport = {
      val manifest = this.manifest(what)
      manifest.get("f") match {
        case None => RetainReport(0, 0, 0, 0)
        case Some(found) if found != "1" => throw refusal(what, Seq("FORMAT", found), 0)
        case Some(_) =>
          val plan = Retention.of(manifest)
          var report = before.copy(floor = plan.base, kept = plan.kept.toLong)
          val isDone = plan.parts.forall { case (floor, fields) =>
            val dropped = drop(what, plan, floor, fields)
            dropped.foreach { case (segments, bytes) =>
              report = report.copy(
                dropped = report.dropped + segments,
                droppedBytes = report.droppedBytes + bytes)
            }
            dropped.isDefined
          }
          if (isDone || tries >= PlansMax) report else carryOut(tries + 1, report)
      }
    }
    carryOut(1, RetainReport(0, 0, 0, 0))
  }

  /** How many segments went, and their bytes; nothing if the plan is of no more use. */
  private def drop(
      what: String,
      plan: Retention,
      floor: Long,
      fields: Seq[String]): Option[(Long, Long)] = {
    val args = Seq(
      ProtocolSettings.DroppedTtlMs.toString,
      plan.epoch,
      plan.opened.version.toString,
      plan.opened.uid,
      floor.toString,
      plan.base.toString,
      plan.carrier) ++ fields
    words(run(what, Script.Retain, args)) match {
      case Seq("OK", segments, bytes) =>
        Some((Stored.number(what, segments), Stored.number(what, bytes)))
      case Seq("STALE") | Seq("EMPTY") => None
      case reply => throw refusal(what, reply, 0)
    }
  }

  private def manifest(what: String): Map[String, String] = {
    roundTrips.incrementAndGet()
    val found =
      backend.call(what, Seq(Command("HGETALL", meta))).head.asInstanceOf[Seq[Array[Byte]]]
    found.map(new String(_, UTF_8)).grouped(2).collect { case Seq(k, v) => k -> v }.toMap
  }

  /** Sets the expiry of every key to what the settings say: renewed, or none. */
  def renew(): Unit = {
    run(s"renew $id", Script.Renew, Seq(settings.keepMs.toString))
    ()
  }

  /** Looks at every published segment: no expiry (unless ephemeral), all its blocks. Bounded by the manifest. */
  def verify(): VerifyReport = {
    val what = s"verify $id"
    val segments = manifest(what).collect {
      case (field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
        Segment.parse(field, entry)
    }.toSeq
    val questions = segments.flatMap { s =>
      val key = Keys.segment(id, s.ident)
      Seq(Command("HLEN", key), Command("PTTL", key))
    }
    val answers = if (questions.isEmpty) Nil else backend.call(what, questions)
    val damaged = mutable.ArrayBuffer.empty[String]
    segments.zip(answers.grouped(2).toSeq).foreach {
      case (s, Seq(blocks: java.lang.Long, ttl: java.lang.Long)) =>
        if (blocks != s.entry.blocks.toLong)
          damaged += s"${s.ident}: $blocks of ${s.entry.blocks} blocks"
        if (settings.keepMs == 0 && ttl >= 0) damaged += s"${s.ident}: expires in $ttl ms"
      case (s, _) => damaged += s"${s.ident}: no answer"
    }
    VerifyReport(segments.size, damaged.toSeq)
  }

  /** Stages all chunks of a delta but the last, which it returns: that one goes along with `publish`. */
  private def stageButLast(
      what: String,
      ident: String,
      fields: Seq[EncodedField]): Seq[EncodedField] = {
    val chunks = chunked(fields)
    chunks.dropRight(1).foreach { chunk =>
      run(what, Script.Stage, Seq(ident), stageArgs(ident, ident, chunk))
    }
    chunks.lastOption.getOrElse(Nil)
  }

  private def publish(
      what: String,
      run: RegisteredRun,
      parent: Pin,
      uid: String,
      entry: Entry,
      ident: String,
      last: Seq[EncodedField]): AnyRef = {
    val keys = Seq(meta, Keys.segment(id, ident))
    val args = Seq(
      run.id,
      run.epoch.toString,
      parent.version.toString,
      parent.uid,
      uid,
      entry.blocks.toString,
      entry.text,
      ProtocolSettings.DroppedTtlMs.toString,
      settings.format.number.toString,
      settings.keepMs.toString
    )
    def commands(run: (Script, Seq[Array[Byte]]) => Command) = {
      val stages = if (last.isEmpty) Nil else Seq(run(Script.Stage, stageArgs(ident, ident, last)))
      stages :+ run(Script.Publish, args.map(bytes))
    }
    val byHash = commands((script, words) => script.byHash(keys, words))
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(byHash.iterator.map(_.bytes).sum)
    val replies = backend.transaction(
      what,
      byHash,
      Some(isPublished),
      commands((script, words) => script.byText(keys, words)))
    replies.init.foreach { staged =>
      words(staged) match {
        case Seq("OK") | Seq("PUBLISHED") => ()
        case other => throw refusal(what, other, parent.version)
      }
    }
    replies.last
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

  /** In format 1 an attempt that was replaced meanwhile must not come back. */
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

  private def stageArgs(
      ident: String,
      field: String,
      fields: Seq[EncodedField]): Seq[Array[Byte]] = {
    val key = Command.bytes(Keys.segment(id, ident))
    def stored(one: EncodedField): Array[Byte] =
      settings.signer.fold(one.block)(_.signed(key, one.name, one.block))
    Seq(bytes(field), bytes(ProtocolSettings.StagedTtlMs.toString)) ++
      fields.flatMap(f => Seq(bytes(f.name), stored(f)))
  }

  private def opened(piece: Piece, values: Seq[Array[Byte]]): Seq[Array[Byte]] =
    settings.signer.fold(values) { signer =>
      val key = Command.bytes(Keys.segment(id, piece.segment.ident))
      piece.fields.zip(values).map { case (field, value) =>
        if (value == null) null else signer.opened(key, field, value)
      }
    }

  private def run(what: String, script: Script, args: Seq[String]): Seq[AnyRef] =
    run(what, script, Nil, args.map(bytes))

  private def run(
      what: String,
      script: Script,
      idents: Seq[String],
      args: Seq[Array[Byte]]): Seq[AnyRef] = {
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(args.iterator.map(_.length.toLong).sum)
    backend.script(what, script, meta +: idents.map(Keys.segment(id, _)), args)
  }

  private def refusal(what: String, reply: Seq[String], version: Long): RedisStateException =
    Refusal.of(what, reply, version, id)
}

object PartitionClient {
  private val logger = LoggerFactory.getLogger(classOf[PartitionClient])
  private val CachedMax = 4
  private val ReregisterMax = 2
  private[core] val AcquireTriesMax = 5
  private val NoLog = "-"
  private[core] val PublishTriesMax = 5
  private val PlansMax = 4
  private[core] val ChunkBytesMax = 1L << 20
  private[core] val FieldsMax = 1024L

  private def bytes(text: String): Array[Byte] = Command.bytes(text)

  private def isPublished(replies: Seq[AnyRef]): Boolean =
    words(replies.last) match {
      case Seq("OK") | Seq("ALREADY") => true
      case _ => false
    }

  private def words(reply: AnyRef): Seq[String] = reply match {
    case items: Seq[_] =>
      items.map { case b: Array[Byte] => new String(b, UTF_8); case x => String.valueOf(x) }
    case other => Seq(String.valueOf(other))
  }

  /** Groups of about 1 MiB; a larger block is a group of its own. */
  private def chunked(fields: Seq[EncodedField]): Seq[Seq[EncodedField]] = {
    val chunks = mutable.ArrayBuffer.empty[Seq[EncodedField]]
    var chunk = mutable.ArrayBuffer.empty[EncodedField]
    var size = 0L
    fields.foreach { field =>
      if (chunk.nonEmpty && (size + field.block.length > ChunkBytesMax || chunk.size >= FieldsMax)) {
        chunks += chunk.toSeq
        chunk = mutable.ArrayBuffer.empty
        size = 0
      }
      chunk += field
      size += field.block.length
    }
    if (chunk.nonEmpty) chunks += chunk.toSeq
    chunks.toSeq
  }
}
