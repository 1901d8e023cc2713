package org.redisstate.core.store

import java.nio.file.{Files, Path}
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.BlockSigner
import org.redisstate.core.places.{LocalDisk, PlayedFiles}

/** Stores that read files of segments from copies on their own disk. */
class LocalDiskReadsSuite extends AnyFunSuite with FilesFixture {
  import LocalDiskReadsSuite._

  private val signer = Some(new BlockSigner(Array.fill(32)(9.toByte)))

  for (signed <- Seq(None, signer))
    test(s"history is read from copies: signed ${signed.nonEmpty}") {
      onServer() { (p, files) =>
        withDisk(files) { disk =>
          val query = begun(p, signer = signed)
          move(query, signed)
          expire(p)
          val reader = p.store("reader", signer = signed)
          readTwice(query, reader)
          assert(disk.copies.nonEmpty)
          files.reads.clear()
          readTwice(query, reader)
          assert(reader.client.filed.diskHits.get > 0)
          // The files are gone, as those of segments that were condemned long ago.
          files.all.foreach(files.delete)
          readTwice(query, reader)
        }
      }
    }

  for (signed <- Seq(None, signer))
    test(
      s"any bit that turns in a copy costs a read of the file, and no more: signed ${signed.nonEmpty}") {
      onServer() { (p, files) =>
        withDisk(files) { disk =>
          val query = begun(p, signer = signed)
          move(query, signed)
          expire(p)
          var damaged, dropped = 0
          (0 until 40).foreach { turn =>
            disk.pass()
            readTwice(query, p.store("reader", signer = signed))
            val copies = disk.copies
            copies.foreach { copy =>
              val bytes = Files.readAllBytes(copy)
              val at = (turn.toLong * bytes.length / 40).toInt
              bytes(at) = (bytes(at) ^ (1 << (turn % 8))).toByte
              Files.write(copy, bytes)
            }
            readTwice(query, p.store("reader", signer = signed))
            damaged += copies.size
            dropped += copies.count(!Files.exists(_))
          }
          // A bit in bytes that nothing reads does no harm.
          assert(damaged > 40 && dropped > damaged / 2)
        }
      }
    }

  test("a file that is damaged itself stays an error, with a copy or without") {
    onServer() { (p, files) =>
      withDisk(files) { disk =>
        val query = begun(p)
        move(query)
        expire(p)
        files.all.foreach { name =>
          val bytes = files.bytes(name).clone()
          bytes.indices.by(50).foreach(at => bytes(at) = (bytes(at) ^ 1).toByte)
          files.put(name, bytes)
        }
        (1 to 2).foreach { _ =>
          disk.pass()
          intercept[FormatException](readTwice(query, p.store("reader")))
        }
      }
    }
  }
}

private object LocalDiskReadsSuite {

  /** Reads old versions twice: going back, a store reads their segments again. */
  private def readTwice(query: Timeline, store: PartitionVersions): Unit =
    (1 to 2).foreach(_ => (1L to 6L).foreach(query.checkWith(store, _)))

  private final class Played(folder: Path, files: PlayedFiles) {
    private val now = new AtomicLong
    private val disk =
      new LocalDisk(1L << 30, () => folder, () => now.get, work => work.run())
    files.localDisk = Some(disk)

    def pass(): Unit = now.addAndGet(61L * 1000 * 1000 * 1000): Unit

    def copies: Seq[Path] = Using.resource(Files.walk(folder))(
      _.iterator.asScala.filter(_.getFileName.toString.endsWith(".seg")).toSeq)

    def close(): Unit = disk.close()
  }

  private def withDisk(files: PlayedFiles)(body: Played => Unit): Unit = {
    val folder = Files.createTempDirectory("redis-state-disk-test")
    val played = new Played(folder, files)
    try body(played)
    finally {
      played.close()
      Files.delete(folder)
    }
  }
}
