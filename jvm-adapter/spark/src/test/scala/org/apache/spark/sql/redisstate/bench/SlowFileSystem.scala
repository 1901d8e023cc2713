package org.apache.spark.sql.redisstate.bench

import java.io.InterruptedIOException
import java.net.URI

import org.apache.hadoop.fs.{
  FileStatus,
  FSDataInputStream,
  FSDataOutputStream,
  Path,
  RawLocalFileSystem
}
import org.apache.hadoop.util.Progressable

/**
 * A folder of this machine that takes as long as an object store: for each request, and for each
 * byte of a stream. `python -m tests.bench.places` reads from it.
 */
private[redisstate] final class SlowFileSystem extends RawLocalFileSystem {
  import SlowFileSystem._

  override def getUri: URI = URI.create(s"$Scheme:///")
  override def getScheme: String = Scheme

  override def open(f: Path, bufferSize: Int): FSDataInputStream =
    new FSDataInputStream(super.open(f, bufferSize)) {
      override def readFully(position: Long, buffer: Array[Byte]): Unit =
        readFully(position, buffer, 0, buffer.length)

      override def readFully(
          position: Long,
          buffer: Array[Byte],
          offset: Int,
          length: Int): Unit = {
        request(length.toLong)
        super.readFully(position, buffer, offset, length)
      }
    }

  override def create(
      f: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    new FSDataOutputStream(
      super.create(f, overwrite, bufferSize, replication, blockSize, progress),
      null) {
      private var isOpen = true
      override def close(): Unit = if (isOpen) {
        isOpen = false
        request(getPos)
        super.close()
      }
    }

  override def delete(p: Path, recursive: Boolean): Boolean = {
    request(0)
    super.delete(p, recursive)
  }

  override def listStatus(f: Path): Array[FileStatus] = {
    request(0)
    super.listStatus(f)
  }
}

private[redisstate] object SlowFileSystem {
  val Scheme = "slow"

  /** System property with the milliseconds of a request; at 0 the bytes take no time either. */
  val RequestMs = "redisstate.test.slow.ms"

  /** 80 MB in a second. */
  private val BytesPerMs = 80000L

  private def request(bytes: Long): Unit = {
    val ms = Integer.getInteger(RequestMs, 0).toLong
    if (ms > 0) {
      try Thread.sleep(ms + bytes / BytesPerMs)
      catch {
        case _: InterruptedException =>
          Thread.currentThread.interrupt()
          throw new InterruptedIOException("a request was interrupted")
      }
    }
  }
}
