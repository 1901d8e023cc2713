package org.redisstate.core.places

import java.io.{IOException, RandomAccessFile}
import java.nio.file.{Files, NoSuchFileException, Path}
import java.nio.file.StandardOpenOption.CREATE_NEW
import java.util.concurrent.{Executor, Executors}
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}
import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.Place

/** Identity of a region; names of files are never used again, so its bytes never change. */
private[core] final case class RegionId(gen: String, place: Place.InFile) {
  def bytes: Long = place.bytes
}

/**
 * Copies of regions on a disk of this machine, for all stores of an executor process. A region is
 * copied in the background, as a whole, when it is needed for the second time. The least recently
 * used copies make room for new ones, except those used in the last minute: on a disk that is too
 * small some regions have a copy, and the others are read from their files. A copy that cannot be
 * read is removed. After a failed write the disk is not used any more. Thread-safe.
 *
 * @param bytesMax most bytes of all copies, including those under way
 * @param parent folder for the folder of this process
 * @param nanoTime the present time
 * @param background runs work for which no task waits
 */
final class LocalDisk private[core] (
    val bytesMax: Long,
    parent: () => Path,
    nanoTime: () => Long = () => System.nanoTime(),
    background: Executor = LocalDisk.newThreads()) {
  import LocalDisk._

  private final class Copy(val id: RegionId) {
    @GuardedBy("LocalDisk.this") var path: Path = _
    @GuardedBy("LocalDisk.this") var usedAt: Long = nanoTime()

    /** True if the copy was removed, or given up. */
    @GuardedBy("LocalDisk.this") var isGone = false
    def isReady: Boolean = path != null
  }

  /** Copies by their last use, the oldest first. */
  @GuardedBy("this") private val copies =
    new java.util.LinkedHashMap[RegionId, Copy](16, 0.75f, true)

  /** Times until which regions get no copy. */
  @GuardedBy("this") private val refused = new java.util.LinkedHashMap[RegionId, Long] {
    override def removeEldestEntry(eldest: java.util.Map.Entry[RegionId, Long]): Boolean =
      size > RefusedMax
  }
  @GuardedBy("this") private var held = 0L
  @GuardedBy("this") private var isOff = false
  private val folder = new LazyFolder(parent)
  background.execute(() => opened(): Unit)

  /** Bytes of all copies, including those under way. */
  def usedBytes: Long = synchronized(held)

  /** Returns bytes of a region, from an offset in the region; None without a copy. */
  private[core] def read(id: RegionId, offset: Long, length: Int): Option[Array[Byte]] =
    pathOf(id).flatMap { path =>
      try Using.resource(new RandomAccessFile(path.toFile, "r")) { file =>
          val bytes = new Array[Byte](length)
          file.seek(offset)
          file.readFully(bytes)
          Some(bytes)
        }
      catch {
        case e: IOException =>
          log.info("a local copy of {} cannot be read: {}", id.place.file: Any, e.toString: Any)
          drop(id)
          None
      }
    }

  private def pathOf(id: RegionId): Option[Path] = synchronized {
    Option(copies.get(id)).filter(_.isReady).map { copy =>
      copy.usedAt = nanoTime()
      copy.path
    }
  }

  /** Removes a copy, and makes no new one for a minute. */
  private[core] def drop(id: RegionId): Unit = {
    val copy = synchronized {
      refuse(id)
      Option(copies.get(id)).map(removed)
    }
    copy.filter(_ != null).foreach(delete)
  }

  /** Begins a copy of a region, unless there is one or its bytes find no room. */
  private[core] def want(id: RegionId, files: FileStore): Unit = {
    val (begun, leaving) = synchronized(if (mayCopy(id)) begin(id) else (None, Nil))
    leaving.foreach(delete)
    begun.foreach(copy => background.execute(() => fill(copy, files)))
  }

  @GuardedBy("this")
  private def mayCopy(id: RegionId): Boolean =
    !isOff && id.bytes <= bytesMax && !copies.containsKey(id) &&
      (!refused.containsKey(id) || refused.get(id) - nanoTime() <= 0)

  /** @return the copy, if there is room for it, and files that make way */
  @GuardedBy("this")
  private def begin(id: RegionId): (Option[Copy], Seq[Path]) = {
    val lacking = held + id.bytes - bytesMax
    val now = nanoTime()
    val leaving = mutable.ArrayBuffer.empty[Copy]
    val oldest = copies.values.iterator.asScala
      .takeWhile(now - _.usedAt >= KeptNs).filter(_.isReady)
    var freed = 0L
    while (freed < lacking && oldest.hasNext) {
      leaving += oldest.next()
      freed += leaving.last.id.bytes
    }
    if (freed < lacking) {
      refuse(id)
      (None, Nil)
    } else {
      val paths = leaving.map(removed).toSeq
      val copy = new Copy(id)
      copies.put(id, copy)
      held += id.bytes
      (Some(copy), paths)
    }
  }

  /** Returns the file of a copy, null while it is on its way. */
  @GuardedBy("this")
  private def removed(copy: Copy): Path = {
    copy.isGone = true
    copies.remove(copy.id)
    held -= copy.id.bytes
    copy.path
  }

  @GuardedBy("this")
  private def refuse(id: RegionId): Unit = refused.put(id, nanoTime() + KeptNs): Unit

  private def fill(copy: Copy, files: FileStore): Unit = {
    def skip(e: Throwable): Unit =
      log.info("no local copy of {}: {}", copy.id.place.file: Any, e.getMessage: Any)
    val path = opened().filter(_ => isWanted(copy)).map(_.newFile())
    var isWhole = false
    try isWhole = path.exists(write(copy, files, _))
    catch {
      case e: NoSuchFileException =>
        // A program that cleans up removed the folder: the next copy makes another one.
        folder.forget()
        skip(e)
      case e: IOException => turnOff(e)
      case e @ (_: FileMissing | _: RedisStateException) => skip(e)
      case NonFatal(e) => log.warn(s"no local copy of ${copy.id.place.file}", e)
    } finally end(copy, path, isWhole)
  }

  private def end(copy: Copy, path: Option[Path], isWhole: Boolean): Unit = {
    val isKept = synchronized {
      if (isWhole && !copy.isGone) {
        copy.path = path.get
        // A new copy counts as used.
        copies.get(copy.id).usedAt = nanoTime()
      } else if (!copy.isGone) {
        refuse(copy.id)
        removed(copy)
      }
      copy.isReady
    }
    if (!isKept) path.foreach(delete)
  }

  /** @return whether all of it was written */
  private def write(copy: Copy, files: FileStore, path: Path): Boolean = {
    val place = copy.id.place
    val out = Files.newOutputStream(path, CREATE_NEW)
    Using.resource(out) { out =>
      Iterator.iterate(0L)(_ + RangeBytes).takeWhile(_ < place.bytes).forall { at =>
        val length = math.min(RangeBytes, place.bytes - at).toInt
        val isGoingOn = isWanted(copy)
        if (isGoingOn) out.write(files.read(place.file, place.offset + at, length))
        isGoingOn
      }
    }
  }

  private def isWanted(copy: Copy): Boolean = synchronized(!copy.isGone)

  private def opened(): Option[DiskFolder] =
    if (synchronized(isOff)) None
    else {
      try Some(folder.get())
      catch {
        case NonFatal(e) =>
          turnOff(e)
          None
      }
    }

  private def turnOff(e: Throwable): Unit = {
    val (isFirst, paths) = synchronized {
      val isFirst = !isOff
      isOff = true
      (isFirst, copies.values.asScala.toSeq.map(removed).filter(_ != null))
    }
    paths.foreach(delete)
    if (isFirst) {
      log.warn(
        s"'localDisk' is off in this process from here on: the folder ${folder.name} takes no files (${e.getClass.getSimpleName}: " +
          s"${e.getMessage}). Files of segments are read where they are, which is slower and changes no result. Make the folder " +
          "writable, free some space there, or give another one in 'localDiskFolder'; then restart the executor.")
    }
  }

  /** Removes all copies, and the folder. */
  private[core] def close(): Unit = {
    synchronized {
      isOff = true
      copies.values.asScala.toSeq.foreach(removed)
    }
    folder.close()
  }
}

object LocalDisk {
  private val log = LoggerFactory.getLogger(classOf[LocalDisk])

  /** Bytes of one read. */
  private[places] val RangeBytes = 8L << 20

  /** Time for which a used copy stays, and for which a refused region is not tried again. */
  private[places] val KeptNs = 60L * 1000 * 1000 * 1000
  private val RefusedMax = 1024
  private val ThreadsMax = 2

  /** @param parents folders; the one with the most free space is used */
  def of(bytesMax: Long, parents: Seq[Path]): LocalDisk = {
    val disk = new LocalDisk(bytesMax, () => roomiest(parents))
    Runtime.getRuntime.addShutdownHook(new Thread(() => disk.close(), "redis-state-disk-end"))
    disk
  }

  private[places] def roomiest(parents: Seq[Path]): Path =
    if (parents.sizeIs == 1) parents.head
    else parents.maxBy(parent => Try(Files.getFileStore(parent).getUsableSpace).getOrElse(-1L))

  private def newThreads(): Executor = {
    val count = new AtomicLong
    Executors.newFixedThreadPool(
      ThreadsMax,
      work => {
        val thread = new Thread(work, s"redis-state-disk-${count.incrementAndGet()}")
        thread.setDaemon(true)
        thread
      })
  }

  private def delete(path: Path): Unit = Try(Files.deleteIfExists(path)): Unit

  /** The folder of this process, made at its first use. */
  private final class LazyFolder(parent: () => Path) {
    @GuardedBy("this") private var made = Option.empty[DiskFolder]
    @GuardedBy("this") private var isClosed = false
    @volatile var name = "for local copies"

    def get(): DiskFolder = synchronized {
      if (isClosed) throw new IOException("this process is ending")
      if (made.isEmpty) {
        val at = parent()
        name = at.toString
        made = Some(DiskFolder.open(at))
      }
      made.get
    }

    def forget(): Unit = synchronized {
      val gone = made.filterNot(one => Files.exists(one.path))
      gone.foreach(_.close())
      if (gone.nonEmpty) made = None
    }

    def close(): Unit = synchronized {
      isClosed = true
      made.foreach(_.close())
    }
  }
}
