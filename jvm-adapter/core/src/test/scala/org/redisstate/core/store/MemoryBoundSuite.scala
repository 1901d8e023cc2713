package org.redisstate.core.store

import java.nio.charset.StandardCharsets.ISO_8859_1

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.backend.Clock
import org.redisstate.core.errors.{ConfigException, NoRoomException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, EncodedField, Segment}
import org.redisstate.core.ids.Keys
import org.redisstate.core.local.Slice
import org.redisstate.core.protocol.manifest.MemoryBound

/** Memory of a partition that has a bound (docs/format.md, section 18). */
class MemoryBoundSuite extends AnyFunSuite with FilesFixture {
  import MemoryBoundSuite._

  for (signed <- Seq(None, Some(new BlockSigner(Array.fill(32)(9.toByte)))))
    test(
      s"a state of several shares is read back, and Redis stays below one: signed ${signed.nonEmpty}") {
      onServer(retained = 5) { (p, files) =>
        val ledger = new Ledger(p, signed)
        (1 to 10).foreach { _ =>
          ledger.commit(3)
          ledger.maintain()
        }
        assert(ledger.bytes > 3 * Share)
        ledger.check()
        val bases = p.raw.hkeys(Keys.meta(p.id)).asScala.filter(_.startsWith("s:")).map(
          _.split(':')(1).toLong)
        assert(bases.max > 20)
        assert(placed(p).keys.exists(_.startsWith(s"s:${bases.max}:")))
        assert(files.all.nonEmpty)
      }
    }

  test("a state that fits stays in Redis") {
    onServer() { (p, files) =>
      val ledger = new Ledger(p)
      (1 to 3).foreach { _ =>
        ledger.commit(5, rows = 5)
        ledger.maintain()
      }
      ledger.check()
      assert(files.all.isEmpty)
    }
  }

  test("a batch above the share is NO_ROOM, and changes nothing") {
    onServer() { (p, _) =>
      val ledger = new Ledger(p)
      ledger.commit(3)
      val refused = intercept[NoRoomException](ledger.commit(1, rows = 2000))
      assert(refused.getMessage.contains("redisMemory") && refused.kind == "NO_ROOM")
      assert(p.meta("l") == "3")
      ledger.check()
      ledger.commit(3)
      ledger.check()
    }
  }

  test("an attempt waits until blocks of a killed one give way") {
    val clock = new Ageing
    onServer(clock) { (p, _) =>
      val ledger = new Ledger(p)
      ledger.commit(1)
      val key = stageByAnother(p, ledger)
      clock.ages = ms => p.raw.pexpire(key, p.raw.pttl(key) - ms): Unit
      ledger.commit(1, rows = 300)
      assert(clock.sleptMs >= 60000 && clock.sleptMs <= 70000)
      assert(!p.raw.exists(key))
      ledger.check()
    }
  }

  test("a preview without room is left out, and waits for nothing") {
    val clock = new Ageing
    onServer(clock) { (p, files) =>
      val ledger = new Ledger(p)
      ledger.commit(1)
      val key = stageByAnother(p, ledger)
      val store = p.store("run1", previewEveryMs = Some(3600000L))
      store.client.bindTo(Share)
      val session = store.open(ledger.at).write()
      val dice = new Random(5)
      (0 until 500).foreach { i =>
        val text = dice.alphanumeric.take(200).mkString
        TestPartition.put(session, TestPartition.key(0, s"p$i"), text)
      }
      session.preview.get.run()
      assert(p.preview.isEmpty && p.raw.exists(key))
      IdleBackground.await()
      assert(files.all.nonEmpty && clock.sleptMs == 0)
      p.raw.del(key)
      session.preview.get.run()
      assert(p.preview.nonEmpty)
      session.abort()
    }
  }

  test("a folder that does not answer is UNAVAILABLE by the deadline, and a later try goes on") {
    onServer(new Slept) { (p, files) =>
      val ledger = new Ledger(p)
      ledger.commit(3)
      files.answers = false
      val refused = intercept[UnavailableException](ledger.commit(12))
      assert(refused.getMessage.contains(s"share of $Share bytes"))
      // Each try announced a file; the deadline is five seconds.
      assert(rows(p).values.count(_.startsWith("n ")) <= 5)
      files.answers = true
      ledger.commit(6)
      ledger.check()
    }
  }

  test("a folder that goes away is UNAVAILABLE, gets no files, and is used again when it is back") {
    onServer(new Slept) { (p, files) =>
      val ledger = new Ledger(p)
      ledger.commit(12)
      val (before, listed) = (files.all, rows(p))
      assert(before.nonEmpty)
      files.isThere = false
      val refused = intercept[UnavailableException](ledger.commit(12))
      assert(refused.getMessage.contains("is not there"))
      assert(refused.getMessage.contains(s"share of $Share bytes"))
      assert(files.all == before && rows(p) == listed)
      files.isThere = true
      ledger.commit(6)
      ledger.check()
    }
  }

  for (step <- Seq("create", "write", "close", "read"))
    test(s"a writer that is killed before the step $step of a base loses nothing") {
      onServer(retained = 5) { (p, files) =>
        val ledger = new Ledger(p)
        ledger.commit(8)
        files.before = name => if (name == step) throw new KilledException
        intercept[KilledException](ledger.maintain())
        files.before = _ => ()
        ledger.check()
        ledger.commit(3)
        ledger.maintain()
        ledger.check()
      }
    }

  test("damaged history stays in Redis, and what comes after it leaves") {
    onServer() { (p, _) =>
      val ledger = new Ledger(p)
      ledger.commit(4)
      ledger.addBase()
      val oldest = p.raw.hkeys(Keys.meta(p.id)).asScala.filter(field =>
        field.startsWith("d:1:") || field.startsWith("d:2:"))
      oldest.foreach(field => p.raw.hset(Keys.segment(p.id, field), "0", "damaged"))
      ledger.commit(4)
      ledger.check()
      assert(oldest.size == 2 && !oldest.exists(placed(p).contains))
    }
  }

  test("another executor that makes room meanwhile changes nothing for the commit") {
    onServer(retained = 5) { (p, files) =>
      val ledger = new Ledger(p)
      val other = p.store("maintenance").client.files
      var rivals = 0
      var isNested = false
      files.before = step =>
        if (step == "close" && !isNested) {
          isNested = true
          rivals += other.makeRoom(Share / 4).getOrElse(0)
          isNested = false
        }
      (1 to 3).foreach { _ =>
        ledger.commit(4)
        ledger.maintain()
      }
      assert(rivals > 0)
      ledger.check()
    }
  }

  test("replies that are lost leave the bound and the rows as they are") {
    onServer(new Slept, retained = 5, between = new LossyTransport(_)) { (p, files) =>
      val ledger = new Ledger(p)
      (1 to 4).foreach { _ =>
        ledger.commit(4)
        ledger.maintain()
      }
      assert(files.all.nonEmpty)
      ledger.check()
    }
  }

  test(
    "a task that is interrupted while it waits for a folder ends, and its next attempt goes on") {
    onServer() { (p, files) =>
      val ledger = new Ledger(p)
      ledger.commit(4)
      files.before = step =>
        if (step == "create") {
          Thread.currentThread.interrupt()
          throw new UnavailableException("the file system was interrupted")
        }
      intercept[InterruptedException](ledger.commit(4))
      Thread.interrupted()
      files.before = _ => ()
      ledger.commit(4)
      ledger.check()
    }
  }

  test("opening a version with its base in a file reads no more than the end of the file") {
    onServer(retained = 5) { (p, files) =>
      val ledger = new Ledger(p)
      ledger.commit(9)
      ledger.maintain()
      val before = files.reads.size
      val opened = p.store("reader").open(ledger.at)
      val some = new Slice
      ledger.some(3).foreach(key => opened.get(key, key.length, some))
      assert(files.reads.size - before <= 12)
      ledger.check()
    }
  }

  test("the next run without a bound has none") {
    onServer() { (p, _) =>
      val ledger = new Ledger(p)
      ledger.commit(9)
      ledger.share = 0
      ledger.restart()
      ledger.commit(1, rows = 2000, isBounded = false)
      assert(p.meta("h") == null)
      ledger.check()
    }
  }

  test("shares are equal parts, of 1 MiB at least") {
    assert(MemoryBound.shareOf(8L * (1088 << 10), 8) == 1L << 20)
    assert(intercept[ConfigException](MemoryBound.shareOf(8L * (1088 << 10), 9))
      .getMessage.contains((9L * (1088 << 10)).toString))
  }
}

private object MemoryBoundSuite {

  /** Stages blocks of another attempt, which take most of the share; returns their key. */
  private def stageByAnother(p: TestPartition, ledger: Ledger): String = {
    val ident = Segment.deltaIdent(ledger.at + 1, "other")
    val blocks = (0 until 10).map(n => EncodedField(n.toString, Array.fill(14000)(n.toByte)))
    p.store("other").client.segments.stage(ident, ident, blocks)
    Keys.segment(p.id, ident)
  }

  private val Share = 200000L

  /** A clock that waits for nobody, and says for how long it did not. */
  private final class Ageing extends Clock {
    @volatile var ages: Long => Unit = _ => ()
    @volatile var sleptMs = 0L
    override def nowMs: Long = Clock.System.nowMs + sleptMs
    override def sleep(ms: Long): Unit = {
      sleptMs += ms
      ages(ms)
    }
  }

  /** A query whose rows do not compress. */
  private final class Ledger(p: TestPartition, signer: Option[BlockSigner] = None) {
    import TestPartition._

    private val dice = new Random(7)
    private val rows = mutable.LinkedHashMap.empty[String, String]
    private var runs = 0
    private var store: PartitionVersions = _
    var at = 0L
    var share: Long = Share
    restart()

    def restart(): Unit = {
      runs += 1
      store = p.store(s"run$runs", signer = signer)
      store.client.bindTo(share)
    }

    def bytes: Long = rows.valuesIterator.map(_.length.toLong).sum

    def commit(times: Int, rows: Int = 150, isBounded: Boolean = true): Unit =
      (1 to times).foreach { _ =>
        val session = store.open(at).write()
        val changed = (1 to rows).map { _ =>
          s"k${dice.nextInt(6000)}" -> new String(dice.nextBytes(200), ISO_8859_1)
        }
        try {
          changed.foreach { case (name, value) =>
            val stored = key(0, name)
            val raw = value.getBytes(ISO_8859_1)
            session.put(stored, stored.length, raw, raw.length)
          }
          at = session.commit().version
        } catch {
          case e: Throwable =>
            session.abort()
            throw e
        }
        this.rows ++= changed
        if (isBounded) checkMemory()
      }

    def addBase(): Unit = {
      store.open(at)
      store.requestSnapshot()
      assert(store.snapshotIfDue())
      checkMemory()
    }

    def maintain(): Unit = {
      addBase()
      store.retain()
      store.client.files.keepRoom(share)
      checkMemory()
    }

    /** The server's own count of the blocks. */
    private def checkMemory(): Unit = {
      val used = p.keys.filter(name => "dsn".contains(name.head)).toSeq.map { name =>
        Option(p.raw.memoryUsage(Keys.meta(p.id).dropRight(1) + name, 0)).fold(0L)(_.longValue)
      }.sum
      assert(used <= Share)
    }

    def some(count: Int): Seq[Array[Byte]] = rows.keysIterator.take(count).map(key(0, _)).toSeq

    /** Compares all rows, on an executor that has nothing cached. */
    def check(): Unit = {
      val opened = p.store("reader", signer = signer).open(at)
      val key, value = new Slice
      val iterator = opened.iterator(0)
      val found = mutable.HashMap.empty[String, String]
      while (iterator.next(key, value))
        found(new String(key.array, key.offset + 2, key.length - 2, ISO_8859_1)) =
          new String(value.array, value.offset, value.length, ISO_8859_1)
      assert(found.size == rows.size)
      rows.foreach { case (name, wanted) => assert(found(name) == wanted) }
    }
  }
}
