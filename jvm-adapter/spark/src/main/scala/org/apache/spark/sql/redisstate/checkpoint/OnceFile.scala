package org.apache.spark.sql.redisstate.checkpoint

import java.io.{FileNotFoundException, IOException}
import java.nio.channels.{Channels, FileChannel}
import java.nio.file.{
  AccessDeniedException,
  FileAlreadyExistsException,
  FileSystemException,
  Files,
  NoSuchFileException,
  StandardOpenOption
}
import java.nio.file.{Path => LocalPath}
import java.util.UUID

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, Path}

import org.apache.spark.sql.redisstate.places.HadoopFiles

/**
 * A small file that is created once, as a whole, by the first writer, and never changed.
 * docs/design.md, section 7, describes each file system. Where two writers may both be first, the
 * later one's bytes stay: they have to agree on the bytes before.
 */
private[redisstate] final class OnceFile(name: Path, hadoopConf: Configuration) {
  import OnceFile._

  private val fs = name.getFileSystem(hadoopConf)
  private val path = fs.makeQualified(name)

  /**
   * Path on a local file system, used past Hadoop's own, which cannot make a whole file only if it
   * is absent.
   */
  private val local: Option[LocalPath] = HadoopFiles.localPath(fs, path)

  /** Opens it at once: whoever asks first whether it is there may have lost it by then. */
  def read(): Option[Array[Byte]] = local.fold(readRemote())(readLocal)

  /**
   * Leaves a file that is there as it is. What is there afterwards has to be read: it may be
   * another one's.
   */
  def create(bytes: Array[Byte]): Unit =
    try local.fold(createRemote(bytes))(createLocal(_, bytes))
    catch { case _: IOException if Try(read()).toOption.flatten.isDefined => () }

  private def readRemote(): Option[Array[Byte]] =
    try {
      val in = fs.open(path)
      try Some(in.readNBytes(BytesMax))
      finally in.close()
    } catch { case _: FileNotFoundException => None }

  private def createRemote(bytes: Array[Byte]): Unit =
    if (fs.hasPathCapability(path, IfAbsentAtClose)) {
      writeTo(
        fs.createFile(path).overwrite(true).recursive().must(IfAbsentAtClose, true).build(),
        bytes)
    } else if (WholeAtClose(path.toUri.getScheme)) writeTo(fs.create(path, false), bytes)
    else rename(bytes)

  /**
   * Renames a temporary file into place; no file system with directories replaces a file unless
   * asked to.
   */
  private def rename(bytes: Array[Byte]): Unit = {
    val temporary = new Path(path.getParent, temporaryName)
    var renamed = false
    try {
      writeTo(fs.create(temporary, false), bytes)
      renamed = read().isEmpty && fs.rename(temporary, path)
    } finally if (!renamed) Try(fs.delete(temporary, false))
    ()
  }

  private def writeTo(out: FSDataOutputStream, bytes: Array[Byte]): Unit = {
    out.write(bytes)
    out.close()
  }

  private def temporaryName = s".${path.getName}.${UUID.randomUUID()}.tmp"

  private def readLocal(file: LocalPath): Option[Array[Byte]] =
    try {
      val in = Files.newInputStream(file)
      try Some(in.readNBytes(BytesMax))
      finally in.close()
    } catch {
      case _: NoSuchFileException => None
      case e: AccessDeniedException => throw e
      case _: FileSystemException if !Files.isDirectory(file.getParent) => None
    }

  private def createLocal(file: LocalPath, bytes: Array[Byte]): Unit = {
    val folder = file.getParent
    if (!Files.isDirectory(folder)) Files.createDirectories(folder)
    // Left by a file that Hadoop wrote here; it would not fit this one.
    Files.deleteIfExists(folder.resolve(s".${path.getName}.crc"))
    val temporary = folder.resolve(temporaryName)
    try {
      writeNew(temporary, bytes)
      try Files.createLink(file, temporary)
      catch {
        case _: FileAlreadyExistsException => ()
        // Some mounted file systems have no links. Readers take a file that is cut for one that is
        // being written.
        case _: UnsupportedOperationException | _: FileSystemException => writeNew(file, bytes)
      }
    } finally Files.deleteIfExists(temporary)
    ()
  }

  private def writeNew(file: LocalPath, bytes: Array[Byte]): Unit = {
    val channel = FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
    try {
      Channels.newOutputStream(channel).write(bytes)
      channel.force(true)
    } finally channel.close()
  }
}

private object OnceFile {
  private val BytesMax = 1 << 16

  /**
   * Capability and option of S3A since Hadoop 3.4.2; not every supported Hadoop has the constant.
   */
  private val IfAbsentAtClose = "fs.option.create.conditional.overwrite"

  /** Stores where a rename is a copy, and a file appears when its stream is closed. */
  private val WholeAtClose = Set("s3", "s3a", "s3n", "gs")
}
