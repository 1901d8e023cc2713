package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{
  FencedException,
  InternalException,
  StateLostException,
  UnavailableException
}
import org.redisstate.core.format.{Family, FamilyKind, MultiValue, Vectors}
import org.redisstate.core.ids.{Keys, Pin}
import org.redisstate.core.local.{Expiry, Slice, StoredKey}

/** Versions that are written as a whole, and read in one pass. */
class FillSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private val Timers =
    Family(4, "timers", FamilyKind.Range, Seq(1), "", "", multiValue = false, internal = true)
  private val Families = Seq(Prefixed, Lists, Ordered, Timers)

  /** Less than those of hashed families in the tests of what was staged. */
  private val StageBytes = 2 << 20

  private type Rows = Seq[(Array[Byte], Array[Byte])]

  /** Rows of all kinds of families, each key once. */
  private def rowsOf(count: Int, bytes: Int): Rows = {
    val random = new Random(7)
    (0 until count).map { i =>
      val text = new Array[Byte](bytes)
      random.nextBytes(text)
      i % 5 match {
        case 1 => prefixed(s"p${i % 10}", s"k$i") -> text
        case 2 => key(2, s"k$i") -> MultiValue.encode(Seq(text, s"second of $i".getBytes(UTF_8)))
        case 3 => key(3, f"t$i%08d") -> text
        case 4 => key(4, f"t$i%08d") -> text
        case _ => key(0, s"k$i") -> text
      }
    }
  }

  private def filled(p: TestPartition, rows: Rows, version: Long = 0): FillSession = {
    val session = p.store("a").openEmpty(version).fill(None, None, StageBytes, None)
    Families.foreach(session.defineFamily)
    rows.foreach { case (k, value) => session.put(k, k.length, value, value.length) }
    session
  }

  private def found(version: OpenVersion): Seq[(String, String)] =
    version.families.flatMap(family => TestPartition.rows(version.iterator(family.id))).sorted

  private def wanted(rows: Rows): Seq[(String, String)] = rows.map { case (k, value) =>
    Vectors.hex(k, 0, k.length) -> Vectors.hex(value, 0, value.length)
  }.sorted

  /** Once what is under way has come. */
  private def staged(p: TestPartition): Set[String] = {
    p.store("a").client.later(()).get()
    p.keys.filter(_.startsWith("d:"))
  }

  private def on(work: TestPartition => Unit): Unit = {
    val p = new TestPartition(server)
    try work(p)
    finally p.close()
  }

  for ((count, bytes) <- Seq(0 -> 0, 300 -> 20, 12000 -> 900))
    test(s"$count rows of $bytes bytes are read as they were filled in, at once and in one pass") {
      on { p =>
        val rows = rowsOf(count, bytes)
        val pin = filled(p, rows, version = 6).commit()
        assert(pin.version == 7)
        val opened = p.store("a").open(7)
        val internal = rows.count(_._1(1) == 4)
        assert(opened.numKeys == count - internal && opened.pin == pin)
        assert(opened.write().numInternalKeys == internal)
        assert(found(opened) == wanted(rows))
        assert(found(p.store("a reader").openOnce(7, None)) == wanted(rows))
        assert(p.damaged.isEmpty)
      }
    }

  for (timeS <- Seq(Some(1000L), None))
    test(s"rows keep their expiries in a version of the time $timeS") {
      on { p =>
        val rows = rowsOf(300, 20)
        val session = p.store("a").openEmpty(6).fill(None, timeS, StageBytes, None)
        Families.foreach(session.defineFamily)
        def expiryOf(i: Int): Long = if (i % 3 == 0) Expiry.Never else 1001L + i
        rows.zipWithIndex.foreach { case ((k, value), i) =>
          session.put(k, k.length, value, value.length, expiryOf(i))
        }
        session.commit()
        val opened = p.store("a reader").openOnce(7, None)
        assert(opened.timeS == timeS && found(opened) == wanted(rows))
        val timed = opened.families.filter(_.ttl)
        assert(timed.map(_.id).toSet == (if (timeS.isEmpty) Set() else Set(0, 1, 3)))
        val expiries = timed.flatMap { family =>
          val (k, value) = (new Slice, new Slice)
          val found = opened.iteratorWithExpiry(family.id)
          Iterator.continually(found.next(k, value)).takeWhile(identity).map { _ =>
            Vectors.hex(k.array, k.offset, k.length) -> Expiry.cut(value)
          }.toSeq
        }
        assert(expiries.toMap == rows.zipWithIndex.collect {
          case ((k, _), i) if timed.exists(_.id == StoredKey.familyOf(k, 0)) =>
            Vectors.hex(k, 0, k.length) -> expiryOf(i)
        }.toMap)
        assert(p.damaged.isEmpty)
      }
    }

  test("a query goes on from a filled version, and its snapshot has the same rows") {
    on { p =>
      val rows = rowsOf(5000, 50)
      filled(p, rows).commit()
      val store = p.store("a")
      val session = store.open(1).write()
      val (last, list) = (rows.head._1, rows(2)._1)
      session.remove(last, last.length)
      append(session, list, "third")
      session.commit()
      val now = found(store.open(2))
      val third = Vectors.hex(MultiValue.encode(Seq("third".getBytes(UTF_8))))
      val changed = wanted(rows.filter(_._1 ne last)).map { case (name, value) =>
        if (name == Vectors.hex(list, 0, list.length)) name -> (value + third) else name -> value
      }
      assert(now == changed)
      assert(found(p.store("a reader").openOnce(2, None)) == now)
      store.requestSnapshot()
      assert(store.snapshotIfDue())
      assert(found(p.store("a reader").open(2)) == now)
      assert(found(p.store("a reader").openOnce(2, None)) == now)
    }
  }

  test("a pass over a version keeps nothing in memory") {
    on { p =>
      val rows = rowsOf(30000, 200).filter(_._1(1) == 0)
      val session = p.store("a").openEmpty(0).fill(None, None, StageBytes, None)
      rows.foreach { case (k, value) => session.put(k, k.length, value, value.length) }
      session.commit()
      val store = p.store("a reader")
      val opened = store.openOnce(1, None)
      assert(found(opened) == wanted(rows))
      assert(store.localBytes == 0 && opened.local.content.base.memoryBytes < 100000)
    }
  }

  test("a version that an operator wrote over nothing is read in both ways") {
    on { p =>
      val rows = rowsOf(3000, 50)
      val session = p.store("a").openEmpty(0).write()
      Families.foreach(session.defineFamily)
      rows.foreach { case (k, value) => session.put(k, k.length, value, value.length) }
      val (gone, list) = (rows.head._1, key(2, "new"))
      session.remove(gone, gone.length)
      append(session, list, "first")
      append(session, list, "second")
      session.deleteRange(3, None, Some("t00001000".getBytes(UTF_8)))
      val left = rows.filter { case (k, _) =>
        (k ne gone) && !(k(1) == 3 && new String(k.drop(2), UTF_8) < "t00001000")
      }
      val both = MultiValue.encode(Seq("first", "second").map(_.getBytes(UTF_8)))
      session.commit()
      assert(found(p.store("a").open(1)) == wanted(left :+ (list -> both)))
      assert(found(p.store("a reader").openOnce(1, None)) == wanted(left :+ (list -> both)))
    }
  }

  test("a filled version is a base: its buckets are read when they are asked for") {
    on { p =>
      val rows = rowsOf(30000, 200).filter(_._1(1) < 3)
      filled(p, rows).commit()
      val store = p.store("a")
      val opened = store.open(1)
      assert(opened.local.content.layers.isEmpty && !opened.local.content.base.isOwn)
      val value = new Slice
      val (k, wanted) = rows(4000)
      assert(opened.get(k, k.length, value))
      assert(Vectors.hex(value.array, value.offset, value.length) ==
        Vectors.hex(wanted, 0, wanted.length))
    }
  }

  test("rows that were given up are gone, unless another attempt has the same id") {
    on { p =>
      val rows = rowsOf(12000, 900)
      val session = filled(p, rows)
      assert(staged(p).nonEmpty)
      session.abort()
      session.abort()
      assert(staged(p).isEmpty)
      intercept[InternalException](session.commit())

      val uid = Pin.newUid()
      val first = p.store("a").openEmpty(0).fill(Some(uid), None, StageBytes, None)
      val late = p.store("a").openEmpty(0).fill(Some(uid), None, StageBytes, None)
      Seq(first, late).foreach { one =>
        Families.foreach(one.defineFamily)
        rows.foreach { case (k, value) => one.put(k, k.length, value, value.length) }
      }
      late.abort()
      first.commit()
      assert(found(p.store("a").open(1)) == wanted(rows))
    }
  }

  test("a commit that an interrupt ends leaves nothing after its abort") {
    on { p =>
      val session = filled(p, rowsOf(12000, 900))
      try {
        Thread.currentThread.interrupt()
        intercept[InterruptedException](session.commit())
        Thread.currentThread.interrupt()
        session.abort()
        assert(Thread.interrupted())
      } finally {
        Thread.interrupted()
        ()
      }
      assert(staged(p).isEmpty)
    }
  }

  test("a run that lost the partition learns it before it sends anything") {
    on { p =>
      p.registry.register("a", byDriver = true, 0, Map.empty)
      val session = p.store("a").openEmpty(0).fill(None, None, StageBytes, None)
      for (version <- 0 to 1) {
        val other = p.store("b").open(version.toLong).write()
        put(other, key(0, "k"), "v")
        other.commit()
      }
      val (k, value) = rowsOf(1, 10).head
      intercept[FencedException](session.put(k, k.length, value, value.length))
      session.abort()
      assert(staged(p).size == 2)
    }
  }

  test("blocks that the server lost are named, and nothing is committed") {
    on { p =>
      val session = filled(p, rowsOf(12000, 900))
      val base = Keys.meta(p.id).dropRight(1)
      staged(p).foreach(name => p.raw.del(base + name))
      val e = intercept[UnavailableException](session.commit())
      assert(
        e.getMessage.contains("the blocks on the server are not those") && e.getMessage.contains(
          "Try again"))
      session.abort()
      intercept[StateLostException](p.store("a").open(1))
    }
  }
}
