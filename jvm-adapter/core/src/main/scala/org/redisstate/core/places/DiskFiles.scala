package org.redisstate.core.places

import java.util.concurrent.atomic.AtomicLong

import org.redisstate.core.errors.FormatException

/**
 * Files of a folder; reads of one region come from its local copy, if there is one. For readers of
 * that region; thread-safe.
 *
 * @param hits counts reads from the copy
 */
private[core] final class DiskFiles(
    files: FileStore,
    disk: LocalDisk,
    id: RegionId,
    hits: AtomicLong)
    extends FileStore {

  /** Number of reads from the copy so far. */
  private val served = new AtomicLong

  /** Begins a copy of the region, unless there is one. */
  def want(): Unit = disk.want(id, files)

  /** Reads; if the copy gave damaged bytes, removes the copy and reads the file. */
  def checked[A](read: => A)(isIntact: A => Boolean): A = {
    val before = served.get
    val found =
      try Some(read)
      catch { case _: FormatException if served.get != before => None }
    found.filter(served.get == before || isIntact(_)).getOrElse {
      disk.drop(id)
      read
    }
  }

  override def folder: String = files.folder
  override def create(name: String): FileSink = files.create(name)
  override def delete(name: String): Unit = files.delete(name)
  override def list(under: String): Option[Seq[String]] = files.list(under)
  override def isMissing(under: String): Boolean = files.isMissing(under)

  override def read(name: String, offset: Long, length: Int): Array[Byte] =
    disk.read(id, offset - id.place.offset, length) match {
      case Some(bytes) =>
        served.incrementAndGet()
        hits.incrementAndGet()
        bytes
      case None => files.read(name, offset, length)
    }
}
