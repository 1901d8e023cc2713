package org.redisstate.core.copy

import scala.collection.mutable

import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.{BlockSigner, Header, Place, Segment, SegmentReader}
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.places._
import org.redisstate.core.protocol.{Piece, SegmentIo}

/** A segment of a copy: manifest field, entry, and place; None without blocks. */
final case class CopiedSegment(field: String, entry: String, place: Option[Place.InFile])

/** Identity of a segment in all copies of a checkpoint: partition, manifest field and entry. */
final case class CopiedName(
    operator: Long,
    partition: Int,
    store: String,
    field: String,
    entry: String)

object CopiedName {
  def of(id: PartitionId, segment: Segment): CopiedName =
    CopiedName(id.operator, id.partition, id.storeName, segment.field, segment.entry.text)
}

/**
 * Writes segments into files of copies (docs/format.md, section 11), each once. Blocks keep their
 * signatures. Blocks of a parent checkpoint are signed again, for the keys that they have after a
 * restore. For one thread.
 *
 * @param store files of the checkpoint, in its own folder
 * @param known places of segments that copies have
 * @param pause waits for ms
 */
final class CopyFiles(
    source: CopySource,
    store: FileStore,
    signer: Option[BlockSigner],
    known: CopiedName => Option[Place.InFile],
    pause: Long => Unit) {
  private val made = mutable.HashMap.empty[CopiedName, Place.InFile]

  /** Places of the segments written so far. */
  def written: Map[CopiedName, Place.InFile] = made.toMap

  /**
   * Returns the segments of a partition with their places, newest first; writes those that no copy
   * has.
   *
   * @throws UnavailableException if Redis or the file system does not answer, or truncated the file
   */
  def write(part: CopyPart): Seq[CopiedSegment] = {
    val id = part.id
    def placeOf(one: Segment) = {
      val name = CopiedName.of(id, one)
      known(name).orElse(made.get(name))
    }
    val stored = part.segments.filter(_.entry.blocks > 0)
    val missing = stored.filter(placeOf(_).isEmpty)
    if (missing.nonEmpty) writeFile(id, missing.reverse)
    part.segments.map { one =>
      CopiedSegment(one.field, one.entry.text, if (one.entry.blocks == 0) None else placeOf(one))
    }
  }

  private def writeFile(id: PartitionId, segments: Seq[Segment]): Unit = {
    val what = s"copy segments of $id"
    val file = BlockFileName.newCopyName(id, segments.head.version, segments.last.version)
    val regions =
      BlockFileWriter.written(store, file, id, signer)(writeRegions(id, _, segments))
    regions.foreach { region =>
      if (!ReadBack.isWhole(store, region, pause))
        throw new UnavailableException(
          s"$what: the file $file of ${store.folder} is not as it was written. The copy is made later. Check the file " +
            "system, and the connection to it.")
    }
    regions.foreach(region => made(CopiedName.of(id, region.segment)) = region.place)
  }

  private def writeRegions(
      id: PartitionId,
      writer: BlockFileWriter,
      segments: Seq[Segment]): Seq[WrittenRegion] = {
    val io = source.segmentsOf(id)
    val headers = headersOf(io, segments)
    val pieces = segments.flatMap { segment =>
      val blocks = new RegionBlocks(id, segment, signer)
      val plain = headers.get(segment).map(blocks.plain(Header.Field, _))
      val header = new SegmentReader(segment).header(plain.orNull)
      io.pieces(segment, BlockFileWriter.names(segment, header).toSeq)
    }
    val values = Piece.grouped(pieces).iterator.flatMap { group =>
      group.iterator.zip(io.fetchSigned(group).iterator).flatMap { case (piece, found) =>
        piece.fields.iterator.zip(found.iterator).map { case (name, value) =>
          (piece.segment, name, value)
        }
      }
    }.buffered
    segments.map { segment =>
      val own = new Iterator[(String, Array[Byte])] {
        override def hasNext: Boolean = values.headOption.exists(_._1 == segment)
        override def next(): (String, Array[Byte]) = {
          val (_, name, value) = values.next()
          name -> value
        }
      }
      writer.write(segment, headers.get(segment), own)
    }
  }

  /** Returns the values of the header fields, as the restored partition will have them. */
  private def headersOf(io: SegmentIo, segments: Seq[Segment]): Map[Segment, Array[Byte]] = {
    val asked = segments.filter(_.entry.header).map(s =>
      Piece(s, Seq(Header.Field), s.entry.bytes / s.entry.blocks))
    Piece.grouped(asked).flatMap { group =>
      group.zip(io.fetchSigned(group)).flatMap { case (piece, values) =>
        Option(values.head).map(piece.segment -> _)
      }
    }.toMap
  }
}
