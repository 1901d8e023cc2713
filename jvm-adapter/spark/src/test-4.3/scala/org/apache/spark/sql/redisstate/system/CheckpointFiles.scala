package org.apache.spark.sql.redisstate.system

import java.io.FileNotFoundException
import java.net.URI
import java.nio.file.{FileAlreadyExistsException, Files, Paths, StandardCopyOption}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.permission.FsPermission

/**
 * The local file system as one of other kinds, at which a process can be held between two of its
 * steps. Points are named `<step>:<file>`.
 */
final class CheckpointFiles extends RawLocalFileSystem {
  import CheckpointFiles._

  // Hadoop starts a program for each of these.
  override def setPermission(path: Path, permission: FsPermission): Unit = ()
  override def getFileLinkStatus(path: Path): FileStatus = getFileStatus(path)

  override def open(path: Path, bufferSize: Int): FSDataInputStream = {
    Worker.at(s"open:${path.getName}")
    super.open(path, bufferSize)
  }

  override def delete(path: Path, recursive: Boolean): Boolean = {
    Worker.at(s"delete:${path.getName}")
    super.delete(path, recursive)
  }

  override def rename(from: Path, to: Path): Boolean = {
    Worker.at(s"rename:${to.getName}")
    if (kind == Objects) super.rename(from, to)
    else {
      // In one step, as the name node and the drivers of the others do it.
      try {
        Files.createLink(Paths.get(to.toUri.getPath), Paths.get(from.toUri.getPath))
        super.delete(from, false)
      } catch { case _: FileAlreadyExistsException => false }
    }
  }

  /** As a file system does it that has a rename, with its checks: HDFS in one step, others in several. */
  private[system] def replace(from: Path, to: Path, overwrite: Boolean): Unit = {
    val (source, target) = (Paths.get(from.toUri.getPath), Paths.get(to.toUri.getPath))
    if (!Files.exists(source)) throw new FileNotFoundException(from.toString)
    def refuse() = throw new org.apache.hadoop.fs.FileAlreadyExistsException(to.toString)
    kind match {
      case Atomic =>
        Worker.at(s"rename:${to.getName}")
        if (overwrite) Files.move(source, target, StandardCopyOption.ATOMIC_MOVE)
        else {
          try Files.createLink(target, source)
          catch { case _: FileAlreadyExistsException => refuse() }
          Files.delete(source)
        }
      case Local =>
        if (Files.exists(target)) { if (overwrite) Files.deleteIfExists(target) else refuse() }
        Worker.at(s"rename:${to.getName}")
        Files.move(source, target, StandardCopyOption.ATOMIC_MOVE)
      case _ =>
        if (Files.exists(target)) { if (overwrite) Files.deleteIfExists(target) else refuse() }
        Worker.at(s"rename:${to.getName}")
        Files.copy(source, target, StandardCopyOption.REPLACE_EXISTING)
        Worker.at(s"delete:${from.getName}")
        Files.deleteIfExists(source)
    }
    ()
  }
}

object CheckpointFiles {
  val Atomic = "atomic"
  val Local = "local"

  /** Copies, and lets the later file stay. */
  val Objects = "objects"

  /** Semantics of renaming a file: one of the kinds above. */
  @volatile var kind: String = Atomic
}

/** Adapter of `CheckpointFiles` for Hadoop's newer file system interface. */
final class CheckpointFs(uri: URI, conf: Configuration, files: CheckpointFiles)
    extends DelegateToFileSystem(uri, files, conf, "file", false) {
  def this(uri: URI, conf: Configuration) = this(uri, conf, CheckpointFs.files(uri, conf))
  override def getUriDefaultPort: Int = -1
  override def isValidName(name: String): Boolean = true

  override def renameInternal(from: Path, to: Path): Unit = files.replace(from, to, false)
  override def renameInternal(from: Path, to: Path, overwrite: Boolean): Unit =
    files.replace(from, to, overwrite)
}

private object CheckpointFs {
  def files(uri: URI, conf: Configuration): CheckpointFiles = {
    val made = new CheckpointFiles
    made.initialize(uri, conf)
    made
  }
}
