package org.redisstate.core.protocol

import java.util
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.{FileLostException, InternalException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, Header, RowFilter, Segment}
import org.redisstate.core.places.{
  BlockFileReader,
  DiskFiles,
  FileFolders,
  FileMissing,
  FileStore,
  RegionBlocks,
  RegionId
}

/**
 * Blocks of segments that are in files. The directories of the regions that were read last stay in
 * memory. Thread-safe.
 *
 * @param folders None where the caller reads no rows
 */
private[protocol] final class FileBlocks(
    calls: PartitionCalls,
    folders: Option[FileFolders],
    signer: Option[BlockSigner]) {
  import FileBlocks._

  @GuardedBy("this") private var blocks = 0L

  /** Bytes of filters in `readers` that nobody has asked for yet. */
  @GuardedBy("this") @volatile private var fresh = 0L
  @GuardedBy("this") private val readers =
    new util.LinkedHashMap[(Segment, Source.File), Opened](16, 0.75f, true)

  /**
   * Values of fields, null where the segment has no such field.
   *
   * @throws FileMissing if the file is not there, or is cut
   */
  def read(segment: Segment, source: Source.File, fields: Seq[String]): Seq[Array[Byte]] = {
    def opened() = known((segment, source)).getOrElse(open(segment, source))
    val values =
      try opened().read(fields)
      catch { case _: FileMissing if hasMoved(segment, source) => opened().read(fields) }
    calls.bytesRead.addAndGet(values.iterator.filter(_ != null).map(_.length.toLong).sum)
    values
  }

  /**
   * Filters of the rows of a segment.
   *
   * @throws FileMissing if the file is not there, or is cut
   */
  def filter(segment: Segment, source: Source.File): RowFilter = {
    val found = known((segment, source)).flatMap(_.filter)
      .orElse(open(segment, source).filter).getOrElse(RowFilter.Unread)
    synchronized(countFresh())
    found
  }

  /** Bytes of filters that wait for somebody to ask for them. */
  def freshBytes: Long = fresh

  /** Drops filters that nobody asked for, which the next use reads again; returns their bytes. */
  def forgetFresh(): Long = synchronized {
    val before = fresh
    readers.values.asScala.foreach { one => one.filter: Unit }
    countFresh()
    before - fresh
  }

  private def countFresh(): Unit =
    fresh = readers.values.asScala.iterator.map(_.freshBytes).sum

  /** Forgets what was read of the segment, and returns whether a second read has a chance. */
  private def hasMoved(segment: Segment, source: Source.File): Boolean = {
    val moved = folders.exists(_.lookAgain(source.owner.gen))
    // A reader of the former folder may have been kept after another thread looked.
    val kept = synchronized {
      val found = readers.remove((segment, source)) != null
      if (found) blocks -= segment.entry.blocks
      countFresh()
      found
    }
    moved || kept
  }

  private def known(key: (Segment, Source.File)): Option[Opened] =
    synchronized(Option(readers.get(key)))

  private def open(segment: Segment, source: Source.File): Opened = {
    val store = storeOf(segment, source)
    val copied = folders.flatMap(_.disk).map { disk =>
      new DiskFiles(store, disk, RegionId(source.owner.gen, source.place), calls.filed.diskHits)
    }
    val opened = new Opened(copied, new RegionBlocks(source.owner, segment, signer))(
      BlockFileReader.open(
        copied.getOrElse(store),
        source.owner,
        segment,
        source.place,
        signer))
    synchronized {
      if (readers.put((segment, source), opened) == null) blocks += segment.entry.blocks
      val oldest = readers.entrySet.iterator
      while (blocks > BlocksMax && readers.size > 1) {
        blocks -= oldest.next().getKey._1.entry.blocks
        oldest.remove()
      }
      forgetFilters(opened)
      countFresh()
    }
    opened
  }

  /** Drops filters that nobody asked for, those of the longest unused segments first. */
  private def forgetFilters(newest: Opened): Unit = {
    val others = readers.values.asScala.filter(_ ne newest)
    var excess = others.iterator.map(_.freshBytes).sum + newest.freshBytes - FreshBytesMax
    others.foreach { one =>
      if (excess > 0) {
        excess -= one.freshBytes
        one.filter: Unit
      }
    }
  }

  private def storeOf(segment: Segment, source: Source): FileStore =
    new CountedFiles(
      FileBlocks.storeOf(s"read ${segment.ident} of ${calls.id}", folders, source.owner.gen),
      calls.filed)

  /**
   * Returns the error for a file that is missing though the manifest names it. A folder that cannot
   * be listed says nothing about its files.
   */
  def lost(what: String, segment: Segment, source: Source.File, missing: FileMissing): Throwable = {
    val store = storeOf(segment, source)
    val file = source.place.file
    if (store.list().isEmpty) {
      new UnavailableException(
        s"$what: the folder ${store.folder}, which has the file $file of ${segment.ident}, is not there. Nothing was " +
          "changed. Mount it, or give the folder of the files in 'placesFolder'; then try again.",
        missing
      )
    } else {
      new FileLostException(
        s"$what: version ${segment.version} needs ${segment.ident}, which is in the file $file of ${store.folder}: " +
          s"${missing.found}. Likely: the file was deleted or cut by another program, or the server was set back to " +
          "data older than 'placesGrace'. Nothing was changed. Restore the file from a backup of the folder, or go " +
          "back to a batch whose state is intact: `redis-state doctor` names the batch and the steps.",
        missing
      )
    }
  }
}

private[protocol] object FileBlocks {

  /**
   * Reader of a segment. A copy that is damaged is given up, and the file read instead.
   *
   * @param copied None without a local disk
   */
  private final class Opened(copied: Option[DiskFiles], blocks: RegionBlocks)(
      open: => BlockFileReader) {
    private val header = Seq(Header.Field)
    private val reads = new AtomicInteger
    private val reader =
      copied.fold(open)(_.checked(open)(found => areIntact(header, found.read(header))))

    def filter: Option[RowFilter] = reader.filter
    def freshBytes: Long = reader.freshBytes

    def read(fields: Seq[String]): Seq[Array[Byte]] =
      copied.fold(reader.read(fields)) { files =>
        // What is read once, such as a delta, is not worth a copy.
        if (fields != header && reads.getAndIncrement() > 0) files.want()
        files.checked(reader.read(fields))(areIntact(fields, _))
      }

    private def areIntact(fields: Seq[String], values: Seq[Array[Byte]]): Boolean =
      fields.lazyZip(values).forall((field, value) =>
        value == null || blocks.isIntact(field, value))
  }

  /** Each takes about four bytes. */
  private val BlocksMax = 1L << 18

  /** Bytes of filters that wait for somebody to ask for them. */
  private val FreshBytesMax = 4L << 20

  /** Returns the files of a checkpoint. */
  def storeOf(what: String, folders: Option[FileFolders], gen: String): FileStore =
    folders.getOrElse(
      throw new InternalException(s"$what: the caller gave no folder of block files.")).of(gen)
}
