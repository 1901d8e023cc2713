package org.redisstate.core.protocol

import scala.collection.mutable

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.errors.{FormatException, RedisStateException}
import org.redisstate.core.format.{BlockSigner, EncodedField, RowFilter, Segment}
import org.redisstate.core.ids.{Keys, PartitionId}
import org.redisstate.core.places.{FileFolders, FileMissing, ReadBack}

/**
 * Stages and reads the blocks of one partition's segments, signed if there is a signer.
 * Thread-safe.
 *
 * @param folders of block files; None if the caller reads no rows
 */
final class SegmentIo private[protocol] (
    calls: PartitionCalls,
    signer: Option[BlockSigner],
    folders: Option[FileFolders],
    room: String => RoomMaker) {
  import PartitionCalls.words
  import SegmentIo._

  private val places = new SegmentPlaces(calls)
  private val files = new FileBlocks(calls, folders, signer)

  /** Ident of the hot run that could not be read here; its version is read from its deltas. */
  @volatile private var runLeftOut = Option.empty[String]

  def id: PartitionId = calls.id

  /** Stores blocks of a segment ahead of its publication; without fields, renews their expiry. */
  def stage(
      ident: String,
      field: String,
      fields: Seq[EncodedField],
      ttlMs: Long = ProtocolSettings.StagedTtlMs): Unit = {
    val chunks = if (fields.isEmpty) Seq(fields) else chunked(fields, StagedBytesMax)
    val maker = room(ident)
    chunks.foreach(stageAtOnce(s"stage blocks of $ident of $id", ident, field, _, ttlMs, maker))
  }

  /**
   * Stores blocks of a slice of a preview, for which no caller waits until there is room.
   *
   * @throws ShareFull if they do not fit into the share
   */
  private[protocol] def stageSlice(
      ident: String,
      fields: Seq[EncodedField],
      ttlMs: Long): Unit =
    chunked(fields, StagedBytesMax).foreach { chunk =>
      val args = chunked(chunk, StagedByScriptMax).map(stageArgs(ident, ident, _, ttlMs))
      if (refusal(s"stage blocks of $ident of $id", ident, args).nonEmpty) throw new ShareFull
    }

  /** Stages some blocks in one round trip; makes room if the share of the partition is full. */
  private def stageAtOnce(
      what: String,
      ident: String,
      field: String,
      fields: Seq[EncodedField],
      ttlMs: Long,
      maker: RoomMaker): Unit = {
    val parts = if (fields.isEmpty) Seq(fields) else chunked(fields, StagedByScriptMax)
    val args = parts.map(stageArgs(ident, field, _, ttlMs))
    var reply = refusal(what, ident, args)
    while (reply.nonEmpty) {
      reply.foreach(maker.make(what, _))
      reply = refusal(what, ident, args)
    }
  }

  /** Runs the script `stage` with each of these arguments; returns the first refusal. */
  private def refusal(
      what: String,
      key: String,
      args: Seq[Seq[Array[Byte]]]): Option[Seq[String]] =
    calls.scripts(what, Script.Stage, key, args).map(words)
      .find(_.headOption.contains(RoomMaker.Refused))

  /**
   * Stores blocks of a snapshot ahead of its entry, under a key of their own. No script reads them:
   * passing blocks through a script costs the server more than storing them.
   *
   * @param isBounded whether the partition has a bound, so that a script has to count the blocks
   * @throws ShareFull if they do not fit into the share
   */
  private[protocol] def stageSnapshot(
      ident: String,
      fields: Seq[EncodedField],
      isBounded: Boolean): Unit = {
    val what = s"stage blocks of $ident of $id"
    chunked(fields, StagedBytesMax).foreach { chunk =>
      if (isBounded) {
        val key = s"n:$ident"
        val args = chunked(chunk, StagedByScriptMax).map(part =>
          Seq(Command.bytes(key), StagedTtl) ++ stored(ident, part))
        if (refusal(what, key, args).nonEmpty) throw new ShareFull
      } else calls.transaction(what, apart(ident, chunk))
    }
  }

  /** Returns commands for one transaction that stage blocks under a key of their own. */
  private[protocol] def apart(ident: String, fields: Seq[EncodedField]): Seq[Command] = {
    val staged = Command.bytes(Keys.staged(id, ident))
    Seq(
      Command("HSET", (staged +: stored(ident, fields)).toArray),
      Command("PEXPIRE", Array(staged, StagedTtl)))
  }

  /**
   * Stages blocks of a delta except the last ones, which it returns: these are sent with `publish`.
   * A small delta is sent with `publish` as a whole, without a script. Otherwise the last blocks
   * pass a script of the transaction, during which the server serves nobody else.
   *
   * @param blocks number of all blocks of the delta
   */
  private[protocol] def stageButLast(
      what: String,
      ident: String,
      fields: Seq[EncodedField],
      blocks: Int): Seq[EncodedField] =
    if (fields.size == blocks && chunked(fields, ChunkBytesMax).size <= 1) fields
    else {
      val last = chunked(fields, StagedByScriptMax).lastOption.getOrElse(Nil)
      val maker = room(ident)
      chunked(fields.dropRight(last.size), StagedBytesMax)
        .foreach(stageAtOnce(what, ident, ident, _, ProtocolSettings.StagedTtlMs, maker))
      last
    }

  /**
   * Reads blocks of a segment, null for an absent field; replies of Redis have about 1 MiB each.
   *
   * @throws SegmentGone if the segment is incomplete: open again
   */
  def fetch(segment: Segment, fields: Seq[String]): Seq[Array[Byte]] =
    if (isInFile(segment)) fetch(Seq(Piece(segment, fields, 0))).head
    else pieces(segment, fields).flatMap(piece => fetch(Seq(piece)).head).toVector

  /** Returns whether the blocks of a segment are in a file, as far as this process knows. */
  private[core] def isInFile(segment: Segment): Boolean = places.of(segment) match {
    case _: Source.File => true
    case _: Source.Redis => false
  }

  /**
   * Returns the filters of the rows of a segment in a file. They only save reads, so an error is
   * left to the reader of the rows.
   */
  private[core] def filter(segment: Segment): RowFilter =
    if (segment.entry.rows == 0) RowFilter.Nothing
    else
      places.of(segment) match {
        case at: Source.File =>
          try files.filter(segment, at)
          catch { case _: FileMissing | _: RedisStateException => RowFilter.Unread }
        case _: Source.Redis => RowFilter.Unknown
      }

  /** Returns whether a version is listed with a hot run that could not be read here. */
  private[protocol] def isLeftOut(segments: Seq[Segment]): Boolean =
    segments.exists(one => one.isHotRun && runLeftOut.contains(one.ident))

  /**
   * Leaves out a hot run that is damaged, which no version needs, and logs that once.
   *
   * @return the exception after which a version is opened again, without the run
   */
  private[core] def leaveOut(run: Segment, found: String): SegmentGone = {
    if (!runLeftOut.contains(run.ident)) {
      runLeftOut = Some(run.ident)
      log.warn(
        s"$id: version ${run.version} is read from its deltas, without the hot run ${run.ident}: $found")
    }
    new SegmentGone(run)
  }

  /** Returns the exception for a segment that is not whole. */
  private def gone(segment: Segment): SegmentGone =
    if (segment.isHotRun) leaveOut(segment, "some of its blocks are missing.")
    else new SegmentGone(segment)

  /** Bytes of filters of files that nobody has asked for yet. */
  private[core] def freshFilterBytes: Long = files.freshBytes

  /** Drops the filters of files that nobody has asked for; returns their bytes. */
  private[core] def forgetFreshFilters(): Long = files.forgetFresh()

  /** A new listing of a version has these segments, with their places. */
  private[protocol] def listed(segments: Seq[Segment]): Unit = places.forget(segments)

  /** Groups fields of a segment so that the blocks of a group make a reply of about 1 MiB. */
  def pieces(segment: Segment, fields: Seq[String]): Seq[Piece] = {
    val average = math.max(1L, segment.entry.bytes / math.max(1, segment.entry.blocks))
    val perPiece = math.max(1L, math.min(ChunkBytesMax / average, FieldsMax)).toInt
    fields.grouped(perPiece).map(Piece(segment, _, average)).toSeq
  }

  /** Reads all pieces in one round trip. */
  def fetch(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] =
    pieces.zip(fetchStored(pieces)).map { case (piece, values) => opened(piece, values) }

  /**
   * Reads all pieces in one round trip, with signatures for the partition's own keys. Signatures of
   * a foreign segment are checked under its own key, and made again.
   */
  def fetchSigned(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] =
    pieces.zip(fetchStored(pieces)).map { case (piece, values) =>
      if (piece.segment.gen.isEmpty) values else signedAgain(piece, values)
    }

  private def signedAgain(piece: Piece, values: Seq[Array[Byte]]): Seq[Array[Byte]] = {
    val key = Command.bytes(Keys.segment(id, piece.segment.ident))
    piece.fields.zip(opened(piece, values)).map {
      case (_, null) => null
      case (field, block) => signer.fold(block)(_.signed(key, field, block))
    }
  }

  /**
   * Reads all pieces as they are stored: those in Redis in one round trip, then those in files.
   * Follows segments that have moved since they were listed.
   */
  private[protocol] def fetchStored(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] = {
    val sources = pieces.map(piece => places.of(piece.segment))
    val inRedis = pieces.zip(sources).collect { case (piece, at: Source.Redis) => piece -> at }
    val found = fromRedis(inRedis).iterator
    pieces.zip(sources).map {
      case (piece, at: Source.Redis) => found.next().getOrElse(follow(piece, at, None))
      case (piece, at: Source.File) =>
        fromFile(piece, at).fold(m => follow(piece, at, Some(m)), identity)
    }
  }

  /**
   * Reads a piece whose blocks are missing at the expected place.
   *
   * @throws SegmentGone if its manifest does not name the segment any more, or Redis lost it
   */
  private def follow(
      piece: Piece,
      first: Source,
      found: Option[FileMissing]): Seq[Array[Byte]] = {
    var (at, missing, moves, tries) = (first, found, 0, 1)
    while (true) {
      val now = places.lookAgain(piece.segment)
      if (now == at) {
        (now, missing) match {
          case (_: Source.File, _) if tries < ReadBack.LooksMax =>
            calls.pause(ReadBack.LookPauseMs)
          case (file: Source.File, Some(m)) =>
            throw files.lost(s"read ${piece.segment.ident} of $id", piece.segment, file, m)
          case _ => throw gone(piece.segment)
        }
        tries += 1
      } else {
        moves += 1
        if (moves > MovesMax) throw gone(piece.segment)
        tries = 1
      }
      at = now
      val values = at match {
        case redis: Source.Redis => fromRedis(Seq(piece -> redis)).head.toRight(None)
        case file: Source.File => fromFile(piece, file).left.map(Some(_))
      }
      values match {
        case Right(read) => return read
        case Left(why) => missing = why
      }
    }
    throw new IllegalStateException
  }

  /** Reads values of pieces; None for a segment that is incomplete in Redis. */
  private def fromRedis(pieces: Seq[(Piece, Source.Redis)]): Seq[Option[Seq[Array[Byte]]]] =
    if (pieces.isEmpty) Nil
    else {
      val commands = pieces.flatMap { case (piece, at) =>
        val key = Command.bytes(Keys.segment(at.owner, piece.segment.ident))
        // HLEN is second: if the key vanishes in between, missing fields are not read as empty buckets.
        Seq(
          Command("HMGET", (key +: piece.fields.map(Command.bytes)).toArray),
          Command("HLEN", Array(key)))
      }
      val replies = calls.commands(s"read ${pieces.head._1.segment.ident} of $id", commands)
      pieces.zip(replies.grouped(2).toSeq).map {
        case ((piece, _), Seq(found: Seq[_], blocks: java.lang.Long))
            if blocks == piece.segment.entry.blocks.toLong =>
          val values = found.asInstanceOf[Seq[Array[Byte]]]
          calls.bytesRead.addAndGet(values.iterator.filter(_ != null).map(_.length.toLong).sum)
          Some(values)
        case _ => None
      }
    }

  private def fromFile(piece: Piece, at: Source.File): Either[FileMissing, Seq[Array[Byte]]] =
    try Right(files.read(piece.segment, at, piece.fields))
    catch { case missing: FileMissing => Left(missing) }

  private[protocol] def stageArgs(
      ident: String,
      field: String,
      fields: Seq[EncodedField],
      ttlMs: Long = ProtocolSettings.StagedTtlMs): Seq[Array[Byte]] =
    Seq(Command.bytes(field), Command.bytes(ttlMs.toString)) ++ stored(ident, fields)

  /** Returns names and values of fields, signed for the key that the segment will have. */
  private def stored(ident: String, fields: Seq[EncodedField]): Seq[Array[Byte]] = {
    val key = Command.bytes(Keys.segment(id, ident))
    fields.flatMap { one =>
      val value = signer.fold(one.block)(_.signed(key, one.name, one.block))
      Seq(Command.bytes(one.name), value)
    }
  }

  /** Checks the signatures of stored values, and returns the blocks. */
  private[protocol] def opened(piece: Piece, values: Seq[Array[Byte]]): Seq[Array[Byte]] =
    signer.fold(values) { signer =>
      val key = Command.bytes(piece.segment.key(id))
      try
        piece.fields.zip(values).map { case (field, value) =>
          if (value == null) null else signer.opened(key, field, value)
        }
      catch {
        case e: FormatException if piece.segment.isHotRun =>
          throw leaveOut(piece.segment, e.getMessage)
      }
    }
}

object SegmentIo {
  private val log = LoggerFactory.getLogger(classOf[SegmentIo])
  private[core] val ChunkBytesMax = 1L << 20
  private[core] val FieldsMax = 1024L
  private val StagedTtl = Command.bytes(ProtocolSettings.StagedTtlMs.toString)
  private val MovesMax = 8

  /** Bytes sent at once ahead of a commit or a snapshot. */
  private[core] val StagedBytesMax = 256L << 10

  /**
   * Bytes that one script stages. Meanwhile the server does nothing else, but it serves other
   * clients between the scripts of a pipeline.
   */
  private[core] val StagedByScriptMax = 64L << 10

  /** Splits fields into groups of bounded size; a larger block is a group of its own. */
  private def chunked(fields: Seq[EncodedField], bytesMax: Long): Seq[Seq[EncodedField]] = {
    val chunks = mutable.ArrayBuffer.empty[Seq[EncodedField]]
    var chunk = mutable.ArrayBuffer.empty[EncodedField]
    var size = 0L
    fields.foreach { field =>
      if (chunk.nonEmpty && (size + field.block.length > bytesMax || chunk.size >= FieldsMax)) {
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
