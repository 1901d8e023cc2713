package org.redisstate.core.protocol

import scala.annotation.tailrec

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, Script}
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.{FormatException, RedisStateException, UnavailableException}
import org.redisstate.core.format.{
  BlockSigner,
  EncodedField,
  Family,
  Header,
  Place,
  Segment,
  SegmentReader
}
import org.redisstate.core.ids.Keys
import org.redisstate.core.places._
import org.redisstate.core.protocol.manifest.{HistoryPlan, ManifestFields, MemoryBound, Stored}

/** Result of a move: number of segments that were given a place in a file, and their bytes. */
final case class MoveReport(segments: Int, bytes: Long)

/**
 * Moves the history of a partition from Redis into files (docs/format.md, section 17). A move
 * changes no version, so any process may make it at any time. It never deletes its file: whatever
 * ends a move, the row of the file in Redis decides. For maintenance, one thread at a time.
 */
final class PartitionFiles private[protocol] (
    calls: PartitionCalls,
    segments: SegmentIo,
    hotRuns: HotRuns,
    folders: Option[FileFolders],
    signer: Option[BlockSigner]) {
  import PartitionCalls.{Formats, words}
  import PartitionFiles._

  private val id = calls.id

  /** Incomplete segments, which `redis-state maintain` reports: each costs one file. */
  @GuardedBy("this") private var damaged = Set.empty[String]

  /**
   * Moves as many segments as one file takes.
   *
   * @throws UnavailableException if Redis or the file system does not answer; then nothing was
   *   moved
   */
  def moveHistory(): MoveReport = synchronized {
    val what = s"move history of $id into a file"
    val manifest = calls.manifest(what)
    if (!manifest.get("f").exists(Formats)) MoveReport(0, 0)
    else {
      val history = HistoryPlan.of(manifest).filterNot(one => damaged(one.ident))
      val planned = HistoryPlan.ofFile(history)
      if (planned.isEmpty) MoveReport(0, 0) else counted(move(what, manifest, planned))
    }
  }

  /** Returns the bound of the partition; None without one. */
  def bound(): Option[MemoryBound] = {
    val what = s"read the bound of $id"
    val found = calls.commands(what, Seq(Command("HGET", calls.meta, MemoryBound.Field))).head
    MemoryBound.parse(Option(found).map(value => words(Seq(value)).head))
  }

  /**
   * Moves the oldest segments into one file.
   *
   * @param lacking bytes to move at least; some more are moved, so that the next call is not soon
   * @param endsRuns whether to drop hot runs if no segment is left that could move
   * @return number of moved segments, or of dropped hot runs; None if nothing is left to move or
   *   drop
   * @throws UnavailableException if Redis or the file system does not answer
   */
  def makeRoom(lacking: Long, endsRuns: Boolean = true): Option[Int] = synchronized {
    val what = s"make room for $id in Redis"
    val manifest = calls.manifest(what)
    val spare = MemoryBound.parse(manifest.get(MemoryBound.Field)).fold(0L)(_.spare)
    val planned =
      if (manifest.get("f").exists(Formats))
        MemoryBound.leaving(manifest, lacking + spare, damaged)
      else Nil
    if (planned.nonEmpty) Some(counted(move(what, manifest, planned)).segments)
    else {
      // Hot runs only hold rows that other segments hold, too.
      val hasRuns =
        endsRuns && manifest.keysIterator.exists(_.startsWith(ManifestFields.HotRunPrefix))
      Option.when(hasRuns)(hotRuns.drop())
    }
  }

  /** @param ident whose blocks need the room */
  private[protocol] def roomMaker(ident: String): RoomMaker =
    new RoomMaker(calls, ident, makeRoom(_), () => hotRuns.drop(), () => dropStaged())

  /**
   * Removes blocks that are staged for snapshots and hot runs, which no version needs: a writer that
   * finds some missing leaves its segment to the next maintenance.
   *
   * @return number of removed keys
   */
  def dropStaged(): Int = {
    val what = s"make room for $id in Redis"
    val staged =
      calls.manifest(what).keysIterator.filter(_.startsWith(ManifestFields.StagedPrefix)).toSeq
    val keys = staged.map(one => Keys.staged(id, one.drop(ManifestFields.StagedPrefix.length)))
    if (keys.isEmpty) 0
    else {
      val removed = calls.commands(what, keys.map(Command("UNLINK", _))).collect {
        case count: java.lang.Long => count.toInt
      }.sum
      log.info("{}: blocks of {} staged segments left", what: Any, removed)
      removed
    }
  }

  /**
   * Sets the share of the partition, and moves segments until a sixth of it is free. For
   * maintenance.
   *
   * @return number of moved segments
   */
  def keepRoom(share: Long): Int = {
    val what = s"bound $id"
    words(calls.script(what, Script.Bound, Seq(share.toString))) match {
      case Seq("OK", bytes) if share > 0 =>
        val lacking = MemoryBound(share, Stored.number(what, bytes)).lacking
        // A hot run is dropped only when a commit needs its room.
        if (lacking > 0) makeRoom(lacking, endsRuns = false).getOrElse(0) else 0
      case _ => 0
    }
  }

  /**
   * Writes a segment into a new file while its blocks are made, and reads its end back.
   *
   * @param begun the segment; its entry need not be known yet
   * @param families of its rows
   * @param blocks passes each block on, in the order of a region, and returns the segment
   * @return None if the partition cannot have files
   * @throws UnavailableException if Redis or the file system does not answer
   */
  def write(begun: Segment, families: Seq[Family])(
      blocks: (EncodedField => Unit) => Segment): Option[(Segment, Place.InFile)] = {
    val what = s"write ${begun.ident} of $id into a file"
    val store = writable(what, calls.manifest(what))
    announce(what, Seq(begun)).map { file =>
      val region = BlockFileWriter.written(store, file, id, signer) { writer =>
        val open = writer.begin(begun, families)
        open.end(blocks(open.addBlock))
      }
      readBack(what, store, region)
      // The stores of this process will need it at once.
      val counted = new CountedFiles(store, calls.filed)
      folders.flatMap(_.disk).foreach(_.want(RegionId(id.gen, region.place), counted))
      region.segment -> region.place
    }
  }

  /**
   * Condemns files that got no segment, and deletes, or counts, files that are unneeded for long.
   *
   * @param sweeps whether to list the folder for files that Redis does not know
   */
  def lookAfter(policy: FilePolicy, sweeps: Boolean): FileReport =
    new FileUpkeep(calls, folders).run(policy, sweeps)

  private def move(
      what: String,
      manifest: Map[String, String],
      planned: Seq[Segment]): MoveReport = {
    val store = writable(what, manifest)
    announce(what, planned).fold(MoveReport(0, 0)) { file =>
      // A segment that changed meanwhile, or is damaged, ends the file.
      val regions = BlockFileWriter.written(store, file, id, signer)(writer =>
        planned.iterator.map(region(what, writer, _)).takeWhile(_.nonEmpty).flatten.toSeq)
      if (regions.isEmpty) MoveReport(0, 0)
      else {
        regions.foreach(readBack(what, store, _))
        place(what, file, regions)
      }
    }
  }

  /**
   * Returns the folder for a new file.
   *
   * @throws UnavailableException if the folder of the partition's files is gone: a new one would be on another disk
   */
  private def writable(what: String, manifest: => Map[String, String]): FileStore = {
    val store = FileBlocks.storeOf(what, folders, id.gen)
    def isGone =
      FileUpkeep.filesIn(manifest).exists(file => store.isMissing(file.takeWhile(_ != '/')))
    if (store.isMissing(BlockFileName.folderOf(id)) && isGone)
      throw new UnavailableException(
        s"$what: the folder ${store.folder}, which has files of the partition, is not there. Nothing was changed. Mount it, " +
          "or give the folder of the files in 'placesFolder'; then try again.")
    store
  }

  private def counted(move: => MoveReport): MoveReport =
    try {
      val report = move
      calls.filed.movedBytes.addAndGet(report.bytes)
      report
    } catch {
      case e: RedisStateException =>
        calls.filed.failedMoves.incrementAndGet()
        throw e
    }

  /** Announces a new name; None if the partition cannot have files. */
  private def announce(what: String, planned: Seq[Segment]): Option[String] = {
    val versions = planned.map(_.version)
    @tailrec def attempt(left: Int): Option[String] = {
      val file = BlockFileName.newName(id, versions.min, versions.max)
      words(calls.fileScript(what, Script.Announce, Seq(file))) match {
        case Seq("OK") => Some(file)
        // The reply to the first call was lost; that name is condemned in a day.
        case Seq("TAKEN") if left > 1 => attempt(left - 1)
        case Seq("EMPTY") | Seq("EXPIRES") => None
        case reply => throw Refusal.of(what, reply, 0, id)
      }
    }
    attempt(NamesMax)
  }

  private def region(
      what: String,
      writer: BlockFileWriter,
      segment: Segment): Option[WrittenRegion] =
    try {
      val field = Piece(segment, Seq(Header.Field), 0)
      val stored = if (segment.entry.header) segments.fetchStored(Seq(field)).head else Nil
      val block = segments.opened(field, stored).headOption
      val header = new SegmentReader(segment).header(block.orNull)
      val names = BlockFileWriter.names(segment, header).toSeq
      val values = segments.pieces(segment, names).iterator.flatMap { piece =>
        piece.fields.iterator.zip(segments.fetchStored(Seq(piece)).head.iterator)
      }
      Some(writer.write(segment, stored.headOption, values))
    } catch {
      case gone: SegmentGone =>
        damaged += gone.segment.ident
        log.info("{}: {} was dropped meanwhile, or is lost", what: Any, gone.segment.ident: Any)
        None
      case e: FormatException =>
        damaged += segment.ident
        log.warn("{}: a segment stays in Redis: {}", what: Any, e.getMessage: Any)
        None
    }

  private def readBack(what: String, store: FileStore, region: WrittenRegion): Unit =
    if (!ReadBack.isWhole(store, region, calls.pause)) {
      throw new UnavailableException(
        s"$what: the file ${region.place.file} of ${store.folder} is not as it was written. Nothing was moved. Check the " +
          "file system, and the connection to it.")
    }

  private def place(what: String, file: String, regions: Seq[WrittenRegion]): MoveReport = {
    val bytes = regions.last.place.offset + regions.last.place.bytes
    val args = Seq(file, bytes.toString, LeavingTtlMs.toString) ++ regions.flatMap { one =>
      Seq(one.segment.field, one.segment.entry.text, one.place.text)
    }
    words(calls.fileScript(what, Script.Place, args)) match {
      case Seq("OK", placed) =>
        MoveReport(
          Stored.number(what, placed).toInt,
          regions.iterator.map(_.segment.entry.bytes).sum)
      case Seq("GONE") | Seq("EXPIRES") =>
        log.info("{}: its segments were dropped meanwhile", what)
        MoveReport(0, 0)
      case reply => throw Refusal.of(what, reply, 0, id)
    }
  }
}

private object PartitionFiles {
  private val log = LoggerFactory.getLogger(classOf[PartitionFiles])
  private val NamesMax = 8

  /** Lifetime of the key of a segment that has moved, for readers under way. */
  private val LeavingTtlMs = 60000L
}
