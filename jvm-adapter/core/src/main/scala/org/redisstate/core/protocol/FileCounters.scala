package org.redisstate.core.protocol

import java.util.concurrent.atomic.AtomicLong

import org.redisstate.core.places.{FileSink, FileStore}

/** Running totals of a partition's files. Thread-safe. */
final class FileCounters {

  /** Number of ranges that were read, the time for them, and their bytes. */
  val reads: AtomicLong = new AtomicLong
  val readNs: AtomicLong = new AtomicLong
  val readBytes: AtomicLong = new AtomicLong

  /** Number of reads from copies on the local disk. */
  val diskHits: AtomicLong = new AtomicLong

  /** Bytes of segments that moved into files. */
  val movedBytes: AtomicLong = new AtomicLong
  val failedMoves: AtomicLong = new AtomicLong

  /** Number of calls that waited until segments had moved to a file, and the time for it. */
  val roomWaits: AtomicLong = new AtomicLong
  val roomWaitNs: AtomicLong = new AtomicLong
}

/** Counts the reads of a folder. */
private[protocol] final class CountedFiles(files: FileStore, counted: FileCounters)
    extends FileStore {
  override def folder: String = files.folder
  override def create(name: String): FileSink = files.create(name)
  override def delete(name: String): Unit = files.delete(name)
  override def list(under: String): Option[Seq[String]] = files.list(under)
  override def isMissing(under: String): Boolean = files.isMissing(under)

  override def read(name: String, offset: Long, length: Int): Array[Byte] = {
    val from = System.nanoTime()
    try {
      val bytes = files.read(name, offset, length)
      counted.readBytes.addAndGet(bytes.length.toLong)
      bytes
    } finally {
      counted.reads.incrementAndGet()
      counted.readNs.addAndGet(System.nanoTime() - from)
      ()
    }
  }
}
