package org.apache.spark.sql.redisstate.checkpoint

import java.io.ByteArrayOutputStream
import java.net.URI
import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{
  FSDataInputStream,
  FSDataOutputStream,
  FSDataOutputStreamBuilder,
  FileAlreadyExistsException,
  Path,
  RawLocalFileSystem
}
import org.apache.hadoop.util.Progressable

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

/**
 * A folder of this machine under another scheme. A test is told of each step before it is made, and
 * may hold it up.
 */
private[redisstate] abstract class SteppedFileSystem(scheme: String) extends RawLocalFileSystem {
  override def getUri: URI = URI.create(s"$scheme:///")
  override def getScheme: String = scheme

  override def open(f: Path, bufferSize: Int): FSDataInputStream = {
    SteppedFileSystem.step(s"open ${f.getName}")
    super.open(f, bufferSize)
  }

  override def create(
      f: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream = {
    SteppedFileSystem.step(s"create ${f.getName}")
    super.create(f, overwrite, bufferSize, replication, blockSize, progress)
  }

  override def delete(p: Path, recursive: Boolean): Boolean = {
    SteppedFileSystem.step(s"delete ${p.getName}")
    super.delete(p, recursive)
  }

  override def rename(src: Path, dst: Path): Boolean = {
    SteppedFileSystem.step(s"rename ${dst.getName}")
    !exists(dst) && renameUnseen(src, dst)
  }

  protected def renameUnseen(src: Path, dst: Path): Boolean = super.rename(src, dst)
}

private[redisstate] object SteppedFileSystem {
  @volatile var step: String => Unit = _ => ()

  val Schemes: Seq[String] = Seq("names", "loose", "s3a", "s3", "file")

  val settings: Map[String, String] = Map(
    "spark.sql.streaming.checkpointFileManagerClass" ->
      s"${CheckpointFileManager.getClass.getPackageName}.FileSystemBasedCheckpointFileManager",
    "fs.names.impl" -> classOf[NamesFileSystem].getName,
    "fs.loose.impl" -> classOf[LooseFileSystem].getName,
    "fs.s3a.impl" -> classOf[StoreFileSystem].getName,
    "fs.s3.impl" -> classOf[ConditionalFileSystem].getName
  )

  val conf: Configuration = {
    val made = new Configuration
    settings.foreach { case (name, value) => made.set(name, value) }
    made
  }
}

/** As HDFS: a rename happens at once or not at all. */
private[redisstate] final class NamesFileSystem extends SteppedFileSystem("names")

/** Checks whether a name is used, but replaces a file that appears after the check. */
private[redisstate] final class LooseFileSystem extends SteppedFileSystem("loose") {
  override protected def renameUnseen(src: Path, dst: Path): Boolean = {
    SteppedFileSystem.step(s"rename over ${dst.getName}")
    super.renameUnseen(src, dst)
  }
}

/**
 * As S3A of older Hadoops: whether the object is there is asked when it is created, and it appears
 * when the stream is closed.
 */
private[redisstate] final class StoreFileSystem extends SteppedFileSystem("s3a") {
  override def create(
      f: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream = {
    SteppedFileSystem.step(s"create ${f.getName}")
    if (!overwrite && exists(f)) throw new FileAlreadyExistsException(f.toString)
    new FSDataOutputStream(new PutAtClose(this, f, ifAbsent = false), null)
  }

  override def rename(src: Path, dst: Path): Boolean =
    throw new AssertionError("a copy and a removal here")
}

/** As S3A since Hadoop 3.4.2: the object appears when the stream is closed, and only if there is none. */
private[redisstate] final class ConditionalFileSystem extends SteppedFileSystem("s3") {
  private val option = "fs.option.create.conditional.overwrite"

  override def hasPathCapability(path: Path, capability: String): Boolean =
    capability == option || super.hasPathCapability(path, capability)

  override def createFile(path: Path): ConditionalBuilder = new ConditionalBuilder(this, path)
}

private[redisstate] final class ConditionalBuilder(fs: RawLocalFileSystem, path: Path)
    extends FSDataOutputStreamBuilder[FSDataOutputStream, ConditionalBuilder](fs, path) {
  override def getThisBuilder: ConditionalBuilder = this

  override def build(): FSDataOutputStream = {
    SteppedFileSystem.step(s"create ${path.getName}")
    new FSDataOutputStream(new PutAtClose(fs, path, ifAbsent = true), null)
  }
}

private final class PutAtClose(fs: RawLocalFileSystem, path: Path, ifAbsent: Boolean)
    extends ByteArrayOutputStream {
  override def close(): Unit = {
    SteppedFileSystem.step(s"put ${path.getName}")
    val file = fs.pathToFile(path).toPath
    if (ifAbsent && Files.exists(file)) throw new FileAlreadyExistsException(path.toString)
    Files.createDirectories(file.getParent)
    Files.write(file, toByteArray)
    ()
  }
}
