package org.redisstate.core.places

import java.io.IOException
import java.nio.channels.{FileChannel, FileLock, OverlappingFileLockException}
import java.nio.file.{FileAlreadyExistsException, Files, LinkOption, NoSuchFileException, Path}
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}
import scala.util.control.NonFatal

import org.redisstate.core.ids.Pin

/**
 * Folder of this process, which holds a lock in the folder as long as it lives. The operating
 * system releases the lock of a killed process, and the next process removes that folder.
 * Thread-safe.
 *
 * @param lock referenced here, since an unreferenced channel is closed
 */
private[core] final class DiskFolder private (val path: Path, lock: FileLock) {
  private val count = new AtomicLong

  /** Returns a new name in the folder. */
  def newFile(): Path = path.resolve(s"${count.incrementAndGet()}.seg")

  /** Removes the folder. */
  def close(): Unit = {
    DiskFolder.remove(path)
    Try(lock.channel.close()): Unit
  }
}

private[core] object DiskFolder {
  private[places] val Prefix = "redis-state-disk-"
  private[places] val LockName = "lock"
  private val TriesMax = 8

  /**
   * Prefix of the names of folders: number and start of the process, since containers repeat
   * numbers.
   */
  private val process: String = {
    val own = ProcessHandle.current()
    val started = own.info.startInstant.map[Long](_.toEpochMilli).orElse(0L)
    s"$Prefix${own.pid}-$started-"
  }

  /**
   * Makes a folder for this process, and removes those of processes that have ended.
   *
   * @param parent created if it is missing
   * @throws IOException if the parent does not accept files or locks
   */
  def open(parent: Path): DiskFolder = {
    Files.createDirectories(parent)
    val made = make(parent)
    try sweep(parent, made.path)
    catch { case NonFatal(_) => () }
    made
  }

  private def make(parent: Path): DiskFolder =
    Iterator.continually(tryMake(parent)).take(TriesMax).collectFirst { case Some(made) => made }
      .getOrElse(throw new IOException(s"no folder with a lock can be made in $parent"))

  /** Makes a folder; None if a process that removes leftovers removed it before it was locked. */
  private def tryMake(parent: Path): Option[DiskFolder] = {
    val path = parent.resolve(process + Pin.newUid())
    try {
      if (parent.getFileSystem.supportedFileAttributeViews.contains("posix"))
        Files.createDirectory(
          path,
          PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")))
      else Files.createDirectory(path)
      val channel = FileChannel.open(path.resolve(LockName), CREATE_NEW, WRITE)
      try Option(channel.tryLock()).filter(_ => Files.exists(path.resolve(LockName)))
          .map(new DiskFolder(path, _)).orElse { channel.close(); None }
      catch {
        case e: IOException =>
          channel.close()
          remove(path)
          throw e
      }
    } catch { case _: NoSuchFileException | _: FileAlreadyExistsException => None }
  }

  private def sweep(parent: Path, own: Path): Unit = {
    val owner = Files.getOwner(own)
    val others = Using.resource(Files.newDirectoryStream(parent, s"$Prefix*"))(
      _.iterator.asScala.toSeq)
    others.foreach { other =>
      val isMine = other.getFileName.toString.startsWith(process)
      // A folder of another user, or a link, may lead anywhere.
      if (!isMine && Files.isDirectory(other, LinkOption.NOFOLLOW_LINKS) && Try(
          Files.getOwner(other, LinkOption.NOFOLLOW_LINKS)).toOption.contains(owner))
        removeLeft(other)
    }
  }

  /**
   * Removes a folder whose process has ended. If the process still lives, the loss only costs
   * reads.
   */
  private def removeLeft(folder: Path): Unit = {
    val lock = folder.resolve(LockName)
    if (!Files.exists(lock, LinkOption.NOFOLLOW_LINKS)) remove(folder)
    else if (Files.isRegularFile(lock, LinkOption.NOFOLLOW_LINKS)) {
      try Using.resource(FileChannel.open(lock, WRITE)) { channel =>
          if (channel.tryLock() != null) remove(folder)
        }
      catch { case _: IOException | _: OverlappingFileLockException => () }
    }
  }

  /** Removes a folder with its files, the lock last. */
  private def remove(folder: Path): Unit =
    Try {
      val files = Using.resource(Files.newDirectoryStream(folder))(_.iterator.asScala.toSeq)
      val (lock, copies) = files.partition(_.getFileName.toString == LockName)
      (copies ++ lock).foreach(Files.deleteIfExists)
      Files.deleteIfExists(folder)
    }: Unit
}
