package org.redisstate.core.protocol

import scala.collection.mutable

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.format.{BlockSigner, EncodedField, Segment}
import org.redisstate.core.ids.{Keys, PartitionId}

/** Stages and reads the blocks of one partition's segments, signed where there is a signer. Thread-safe. */
final class SegmentIo private[protocol] (calls: PartitionCalls, signer: Option[BlockSigner]) {
  import SegmentIo._

  def id: PartitionId = calls.id

  /** Stores blocks of a segment ahead of its publication; without fields, its heartbeat. */
  def stage(ident: String, field: String, fields: Seq[EncodedField]): Unit = {
    val what = s"stage blocks of $ident of $id"
    val chunks = if (fields.isEmpty) Seq(fields) else chunked(fields, StagedBytesMax)
    chunks.foreach { chunk =>
      calls.script(what, Script.Stage, Seq(ident), stageArgs(ident, field, chunk))
    }
  }

  /**
   * Stores blocks of a snapshot ahead of its entry, under a key of their own. No script looks at
   * them: to pass blocks through one costs the server more than to store them.
   */
  private[protocol] def stageSnapshot(ident: String, fields: Seq[EncodedField]): Unit = {
    val staged = Command.bytes(Keys.staged(id, ident))
    chunked(fields, StagedBytesMax).foreach { chunk =>
      calls.transaction(
        s"stage blocks of $ident of $id",
        Seq(
          Command("HSET", (staged +: stored(ident, chunk)).toArray),
          Command("PEXPIRE", Array(staged, StagedTtl))))
    }
  }

  /** Stages all chunks of a delta but the last, which it returns: that one goes along with `publish`. */
  private[protocol] def stageButLast(
      what: String,
      ident: String,
      fields: Seq[EncodedField]): Seq[EncodedField] = {
    val chunks = chunked(fields, ChunkBytesMax)
    chunks.dropRight(1).flatMap(chunked(_, StagedBytesMax)).foreach { chunk =>
      calls.script(what, Script.Stage, Seq(ident), stageArgs(ident, ident, chunk))
    }
    chunks.lastOption.getOrElse(Nil)
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

  /** Reads all pieces in one round trip. */
  def fetch(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] =
    pieces.zip(fetchStored(pieces)).map { case (piece, values) => opened(piece, values) }

  /**
   * Reads all pieces in one round trip, with the signatures that they have under the partition's
   * own keys. Those of a foreign segment are checked under its key, and signed again.
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

  /** Reads all pieces in one round trip, as the server holds them. */
  private def fetchStored(pieces: Seq[Piece]): Seq[Seq[Array[Byte]]] = {
    val commands = pieces.flatMap { piece =>
      val key = Command.bytes(piece.segment.key(id))
      // HLEN comes second: if the key vanishes in between, the missing fields cannot pass for empty buckets.
      Seq(
        Command("HMGET", (key +: piece.fields.map(Command.bytes)).toArray),
        Command("HLEN", Array(key)))
    }
    val replies = calls.commands(s"read ${pieces.head.segment.ident} of $id", commands)
    pieces.zip(replies.grouped(2).toSeq).map {
      case (piece, Seq(found: Seq[_], blocks: java.lang.Long))
          if blocks == piece.segment.entry.blocks.toLong =>
        val values = found.asInstanceOf[Seq[Array[Byte]]]
        calls.bytesRead.addAndGet(values.iterator.filter(_ != null).map(_.length.toLong).sum)
        values
      case (piece, _) => throw new SegmentGone(piece.segment)
    }
  }

  private[protocol] def stageArgs(
      ident: String,
      field: String,
      fields: Seq[EncodedField]): Seq[Array[Byte]] =
    Command.bytes(field) +: StagedTtl +: stored(ident, fields)

  /** Names and values of fields, signed for the key that the segment will have. */
  private def stored(ident: String, fields: Seq[EncodedField]): Seq[Array[Byte]] = {
    val key = Command.bytes(Keys.segment(id, ident))
    fields.flatMap { one =>
      val value = signer.fold(one.block)(_.signed(key, one.name, one.block))
      Seq(Command.bytes(one.name), value)
    }
  }

  private def opened(piece: Piece, values: Seq[Array[Byte]]): Seq[Array[Byte]] =
    signer.fold(values) { signer =>
      val key = Command.bytes(piece.segment.key(id))
      piece.fields.zip(values).map { case (field, value) =>
        if (value == null) null else signer.opened(key, field, value)
      }
    }
}

object SegmentIo {
  private[core] val ChunkBytesMax = 1L << 20
  private[core] val FieldsMax = 1024L
  private val StagedTtl = Command.bytes(ProtocolSettings.StagedTtlMs.toString)

  /** Bytes of a chunk ahead of a commit: the server does nothing else while it stores a chunk. */
  private[core] val StagedBytesMax = 256L << 10

  /** Groups of bounded size; a larger block is a group of its own. */
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
