package org.redisstate.core.places

import java.io.RandomAccessFile
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.jdk.CollectionConverters._
import scala.util.Using

/** A folder of this machine, which a process of Python uses, too. */
private[core] final class LocalFiles(root: Path) extends FileFolders {
  override def of(gen: String): FileStore = new LocalFiles.Store(root.resolve(gen))
}

private object LocalFiles {
  private final class Store(at: Path) extends FileStore {
    override def folder: String = at.toString

    override def create(name: String): FileSink = {
      val path = at.resolve(name)
      Files.createDirectories(path.getParent)
      val out = Files.newOutputStream(path, StandardOpenOption.CREATE_NEW)
      new FileSink {
        override def write(bytes: Array[Byte]): Unit = out.write(bytes)
        override def close(): Unit = out.close()
        override def abandon(): Unit = out.close()
      }
    }

    override def read(name: String, offset: Long, length: Int): Array[Byte] = {
      val path = at.resolve(name)
      if (!Files.exists(path)) throw new FileMissing("it is not there")
      if (Files.size(path) < offset + length) throw new FileMissing("it is cut")
      Using.resource(new RandomAccessFile(path.toFile, "r")) { file =>
        val bytes = new Array[Byte](length)
        file.seek(offset)
        file.readFully(bytes)
        bytes
      }
    }

    override def delete(name: String): Unit = {
      Files.deleteIfExists(at.resolve(name))
      ()
    }

    override def list(under: String): Option[Seq[String]] = {
      val path = if (under.isEmpty) at else at.resolve(under)
      Option.when(Files.isDirectory(path))(Using.resource(Files.list(path))(
        _.iterator.asScala.map(_.getFileName.toString).toSeq))
    }
  }
}
