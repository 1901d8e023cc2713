package org.apache.spark.sql.redisstate.places

import java.io.{EOFException, FileNotFoundException, IOException, RandomAccessFile}
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, NoSuchFileException, NotDirectoryException, StandardOpenOption}
import java.nio.file.{Path => LocalPath}

import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  FileSystem,
  FSDataOutputStream,
  LocalFileSystem,
  Path,
  RawLocalFileSystem,
  StreamCapabilities
}
import org.apache.hadoop.security.AccessControlException
import org.apache.hadoop.util.functional.FutureIO

import org.redisstate.core.errors.{PermissionException, RedisStateException, UnavailableException}
import org.redisstate.core.places.{FileMissing, FileSink, FileStore}

/** Block files in a folder of any file system that Spark has, with the settings of the query. */
private[redisstate] final class HadoopFiles(at: Path, hadoopConf: Configuration) extends FileStore {
  import HadoopFiles._

  override val folder: String = at.toString
  private lazy val fs: FileSystem = at.getFileSystem(hadoopConf)

  /** Path of a local folder, used past Hadoop's file system, which neither syncs a file nor its name. */
  private lazy val local: Option[LocalPath] = localPath(fs, at)

  override def create(name: String): FileSink = answered("create", name) {
    local match {
      case Some(path) => new LocalSink(path.resolve(name), name)
      case None => new HadoopSink(fs.create(new Path(at, name), false), name)
    }
  }

  override def read(name: String, offset: Long, length: Int): Array[Byte] =
    answered("read", name) {
      val bytes = new Array[Byte](length)
      try {
        local match {
          case Some(path) => readLocal(path.resolve(name), offset, bytes)
          case None => readHadoop(new Path(at, name), offset, bytes)
        }
        bytes
      } catch {
        case e @ (_: FileNotFoundException | _: NoSuchFileException) =>
          throw new FileMissing("it is not there", e)
        case e: EOFException => throw new FileMissing("it is cut", e)
      }
    }

  private def readLocal(path: LocalPath, offset: Long, bytes: Array[Byte]): Unit =
    try Using.resource(new RandomAccessFile(path.toFile, "r")) { file =>
        file.seek(offset)
        file.readFully(bytes)
      }
    catch {
      // Java gives the same error for a file that may not be read.
      case e: FileNotFoundException if Files.exists(path) =>
        throw new AccessControlException(e.getMessage)
    }

  /** No request for the length is needed: the range ends where the caller says. */
  private def readHadoop(path: Path, offset: Long, bytes: Array[Byte]): Unit = {
    val opening = fs.openFile(path)
      .opt(ReadPolicy, "random")
      .opt(Length, (offset + bytes.length).toString)
    Using.resource(FutureIO.awaitFuture(opening.build()))(_.readFully(offset, bytes))
  }

  override def delete(name: String): Unit = answered("delete", name) {
    local match {
      case Some(path) => Files.deleteIfExists(path.resolve(name)): Unit
      case None => deleteHadoop(new Path(at, name))
    }
  }

  /** A file system may answer that it deleted nothing, and say no more. */
  private def deleteHadoop(path: Path): Unit = {
    val isDeleted =
      try fs.delete(path, false)
      catch { case _: FileNotFoundException => true }
    if (!isDeleted && fs.exists(path)) throw new IOException("it is still there")
  }

  override def list(under: String): Option[Seq[String]] = answered("list", under) {
    val path = if (under.isEmpty) at else new Path(at, under)
    try {
      local match {
        case Some(root) =>
          Using.resource(Files.list(root.resolve(under)))(all =>
            Some(all.iterator.asScala.map(_.getFileName.toString).toSeq))
        case None => Some(fs.listStatus(path).toSeq.map(_.getPath.getName))
      }
    } catch {
      case _: FileNotFoundException | _: NoSuchFileException | _: NotDirectoryException => None
    }
  }

  override def isMissing(under: String): Boolean =
    local.exists(path => Files.notExists(path.resolve(under)))

  private def answered[A](action: String, name: String)(body: => A): A = {
    def what = s"$action ${if (name.isEmpty) "the folder" else name} in $folder"
    try body
    catch {
      case e: RedisStateException => throw e
      case e @ (_: AccessControlException | _: java.nio.file.AccessDeniedException) =>
        throw new PermissionException(
          s"$what: the file system refused it (${e.getMessage}). Give the user of Spark the right to $action files there.",
          e)
      case e: IOException =>
        throw new UnavailableException(
          s"$what: the file system gave no answer (${e.getClass.getSimpleName}: ${e.getMessage}). Nothing was lost. Check " +
            "that driver and executors reach the folder; Spark runs the task again.",
          e
        )
    }
  }

  private final class HadoopSink(out: FSDataOutputStream, name: String) extends FileSink {
    override def write(bytes: Array[Byte]): Unit = answered("write", name)(out.write(bytes))

    override def close(): Unit = answered("write", name) {
      if (out.hasCapability(StreamCapabilities.HSYNC)) out.hsync()
      out.close()
    }

    override def abandon(): Unit = {
      // Where a file appears when its stream is closed, it need not appear.
      if (out.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) Try(out.abort()): Unit
      Try(out.close()): Unit
    }
  }

  private final class LocalSink(path: LocalPath, name: String) extends FileSink {
    makeFolder(path.getParent)
    private val channel =
      FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)

    override def write(bytes: Array[Byte]): Unit = answered("write", name) {
      val left = ByteBuffer.wrap(bytes)
      while (left.hasRemaining) channel.write(left)
    }

    override def close(): Unit = answered("write", name) {
      channel.force(true)
      channel.close()
      sync(path.getParent)
    }

    override def abandon(): Unit = Try(channel.close()): Unit
  }
}

private[redisstate] object HadoopFiles {

  /** Returns the path of a file or folder on a local file system of Hadoop, None on any other. */
  def localPath(fs: FileSystem, path: Path): Option[LocalPath] =
    Option.when(
      fs.isInstanceOf[LocalFileSystem] || fs.getClass == classOf[RawLocalFileSystem])(
      LocalPath.of(fs.makeQualified(path).toUri.getPath))

  /** Options of Hadoop's `openFile`; not every supported Hadoop has the constants. */
  private val ReadPolicy = "fs.option.openfile.read.policy"
  private val Length = "fs.option.openfile.length"

  private def makeFolder(folder: LocalPath): Unit =
    if (!Files.isDirectory(folder)) {
      val missing =
        Iterator.iterate(folder)(_.getParent).takeWhile(p => p != null && !Files.exists(p)).toSeq
      Files.createDirectories(folder)
      missing.foreach(made => Option(made.getParent).foreach(sync))
    }

  /** Makes the names in a folder outlive a crash, where the file system can do so. */
  private def sync(folder: LocalPath): Unit =
    Try(Using.resource(FileChannel.open(folder, StandardOpenOption.READ))(_.force(true))): Unit
}
