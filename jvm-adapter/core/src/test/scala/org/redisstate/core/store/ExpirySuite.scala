package org.redisstate.core.store

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.Entry
import org.redisstate.core.ids.{Keys, Pin}
import org.redisstate.core.local.{Expiry, RowIterator, RowValidator, Slice}

/** Rows with a time to live, against a plain model (docs/format.md, section 15). */
class ExpirySuite extends AnyFunSuite with BeforeAndAfterAll {
  import ExpirySuite._
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def partition(name: String)(body: TestPartition => Unit): Unit = test(name) {
    val partition = new TestPartition(server)
    try body(partition)
    finally partition.close()
  }

  private def entryOf(p: TestPartition, pin: Pin): Entry =
    Entry.parse(p.meta(s"d:${pin.version}:${pin.uid}"))

  /** Makes a version later by some seconds, and thereby each version on top of it. */
  private def pass(p: TestPartition, pin: Pin, seconds: Long): Unit =
    p.raw.hgetAll(Keys.meta(p.id)).asScala.foreach { case (field, entry) =>
      if (field.matches(s"[ds]:${pin.version}:${pin.uid}")) {
        val parsed = Entry.parse(entry)
        p.raw.hset(
          Keys.meta(p.id),
          field,
          parsed.copy(time = parsed.time + seconds).text): Unit
      }
    }

  private def found(open: OpenVersion, name: String): Option[String] = {
    val out = new Slice
    val k = key(0, name)
    val there = open.get(k, k.length, out)
    assert(open.contains(k, k.length) == there)
    if (there) Some(text(out)) else None
  }

  private def texts(rows: RowIterator): Map[String, String] = {
    val all = mutable.HashMap.empty[String, String]
    val k, v = new Slice
    while (rows.next(k, v)) {
      all(new String(k.array, k.offset + 2, k.length - 2)) = text(v)
    }
    all.toMap
  }

  private def write(store: PartitionVersions, version: Long)(rows: (String, String)*): Pin = {
    val session = store.open(version).write()
    rows.foreach { case (name, value) => put(session, key(0, name), value) }
    session.commit()
  }

  partition("a row is hidden once its time to live is over, and can be written again") { p =>
    def store = p.store("a", ttlMs = Some(1000000))
    val first = write(store, 0)("x" -> "1")
    assert(found(p.store("reader").open(1), "x").contains("1"))
    pass(p, first, 900)
    val second = write(store, 1)("y" -> "2")
    assert(found(p.store("reader").open(2), "x").contains("1"))
    pass(p, second, 110)
    val session = store.open(2).write()
    val out = new Slice
    val x = key(0, "x")
    assert(!session.get(x, x.length, out) && !session.contains(x, x.length))
    assert(texts(session.iterator(0)) == Map("y" -> "2"))
    put(session, x, "3")
    val third = session.commit()
    assert(texts(p.store("reader").open(3).iterator(0)) == Map("x" -> "3", "y" -> "2"))
    assert(entryOf(p, third).time == entryOf(p, second).time)
  }

  partition("an older version still has the rows that expired later") { p =>
    val store = p.store("a", ttlMs = Some(500000))
    val first = write(store, 0)("x" -> "1")
    pass(p, first, 0)
    val later = p.store("a", ttlMs = Some(500000))
    write(later, 1)("y" -> "2")
    pass(p, later.open(2).pin, 6000)
    write(p.store("a", ttlMs = Some(500000)), 2)("z" -> "3")
    val reader = p.store("reader")
    assert(texts(reader.open(3).iterator(0)) == Map("z" -> "3"))
    assert(texts(reader.open(1).iterator(0)) == Map("x" -> "1"))
  }

  partition("a batch that is run again has the time of its first attempt") { p =>
    val store = p.store("a", ttlMs = Some(6000000))
    write(store, 0)("x" -> "1")
    val attempt = write(store, 1)("y" -> "2")
    pass(p, attempt, 3000)
    val time = entryOf(p, attempt).time
    val again = p.store("a", ttlMs = Some(6000000)).open(1)
    assert(again.nextS == time)
    val next = p.store("b", ttlMs = Some(6000000)).open(1)
    assert(next.nextS == time)
  }

  partition("a store that begins to expire rows writes them all with an expiry") { p =>
    val plain = p.store("a")
    write(plain, 0)("x" -> "1", "y" -> "2")
    write(plain, 1)("y" -> "3")
    val pin = write(p.store("a", ttlMs = Some(1000000)), 2)("z" -> "4")
    val entry = entryOf(p, pin)
    assert(entry.complete && entry.time > 0 && entry.live == 3)
    assert(texts(p.store("reader").open(3).iterator(0)) == Map("x" -> "1", "y" -> "3", "z" -> "4"))
    pass(p, pin, 1010)
    write(p.store("a", ttlMs = Some(1000000)), 3)("y" -> "5")
    assert(texts(p.store("reader").open(4).iterator(0)) == Map("y" -> "5"))
  }

  partition("a store that stops to expire rows keeps those that are not expired") { p =>
    val store = p.store("a", ttlMs = Some(1000000))
    val first = write(store, 0)("x" -> "1")
    pass(p, first, 1010)
    val second = write(p.store("a", ttlMs = Some(1000000)), 1)("y" -> "2")
    assert(entryOf(p, second).live == 2)
    val third = write(p.store("a"), 2)()
    val entry = entryOf(p, third)
    assert(entry.complete && entry.time == 0 && entry.live == 1)
    assert(texts(p.store("reader").open(3).iterator(0)) == Map("y" -> "2"))
  }

  partition("a value without an expiry is damaged") { p =>
    val store = p.store("a", ttlMs = Some(1000000))
    write(store, 0)("x" -> "1")
    val validator: RowValidator =
      (_, _, _, _, length) => if (length == 1) null else s"$length bytes"
    assert(found(p.store("reader", validator).open(1), "x").contains("1"))
    val pin = write(p.store("b"), 1)("y" -> "abc")
    val entry = entryOf(p, pin)
    assert(entry.time == 0)
    val strict: RowValidator = (_, _, _, _, length) => if (length >= 0) null else "negative"
    assertThrows[FormatException](p.store("reader", validator).open(2).iterator(0).next(
      new Slice,
      new Slice))
    assert(texts(p.store("reader", strict).open(2).iterator(0)) == Map("x" -> "1", "y" -> "abc"))
  }

  partition("a delta in which a family begins to expire has to be complete") { p =>
    write(p.store("a"), 0)("x" -> "1")
    val pin = write(p.store("a", ttlMs = Some(1000000)), 1)("y" -> "2")
    val entry = entryOf(p, pin)
    p.raw.hset(
      Keys.meta(p.id),
      s"d:${pin.version}:${pin.uid}",
      entry.copy(complete = false).text): Unit
    val thrown = intercept[FormatException](p.store("reader").open(2))
    assert(thrown.getMessage.contains("a family gets or loses a time to live"))
  }

  partition("expired rows are not counted down in a sibling that never counted them") { p =>
    def store = p.store("a", ttlMs = Some(1000000))
    pass(p, write(store, 0)((1 to 40).map(i => s"old $i" -> "1"): _*), 900)
    pass(p, write(store, 1)((1 to 60).map(i => s"new $i" -> "1"): _*), 200)
    val executor = store
    val first = executor.open(2).write()
    executor.requestSnapshot()
    assert(executor.snapshotIfDue())
    put(first, key(0, "x"), "1")
    val a = executor.cache.find(first.commit()).get
    val second = executor.open(2).write()
    put(second, key(0, "y"), "1")
    val b = executor.cache.find(second.commit()).get
    assert((a.live.all, b.live.all) == ((101, 61)))
    executor.cache.recountRows(a, 61)
    assert((a.live.all, b.live.all) == ((61, 61)))
  }

  (1 to Seeds).foreach { seed =>
    partition(s"random changes, reruns, folds and snapshots, seed $seed") { p =>
      new Play(p, new Random(seed)).run()
    }
  }

  /** Random life of a partition with two executors and a model of its versions. */
  private final class Play(p: TestPartition, random: Random) {
    private var ttlMs: Option[Long] = if (random.nextBoolean()) Some(2000000) else None
    private var executors = Vector.fill(2)(p.store("run", ttlMs = ttlMs))
    private val versions = mutable.ArrayBuffer(Map.empty[String, Row])
    private val pins = mutable.ArrayBuffer(Pin.Empty)
    private val times = mutable.ArrayBuffer(0L)

    def run(): Unit = {
      (1 to Steps).foreach(_ => step())
      versions.indices.foreach { v =>
        val opened = p.store("reader").open(v.toLong)
        assert(texts(opened.iterator(0)) == values(v), s"version $v")
        assert(opened.numKeys >= values(v).size)
      }
    }

    private def step(): Unit = random.nextInt(12) match {
      case 0 => replaceExecutor()
      case 1 => turn()
      case 2 => snapshot()
      case 3 | 4 if ttlMs.nonEmpty && versions.length > 1 => passSome()
      case _ => batch()
    }

    private def values(v: Int): Map[String, String] = shown(v, times(v))
    private def shown(v: Int, time: Long): Map[String, String] =
      versions(v).collect { case (name, row) if row.expiry > time => name -> row.value }

    private def replaceExecutor(): Unit = {
      val at = random.nextInt(executors.length)
      executors(at).close()
      executors = executors.updated(at, p.store("run", ttlMs = ttlMs))
    }

    private def turn(): Unit = {
      ttlMs = ttlMs match {
        case None => Some(500000L * (1 + random.nextInt(5)))
        case Some(_) => None
      }
      executors.foreach(_.close())
      executors = executors.map(_ => p.store("run", ttlMs = ttlMs))
    }

    private def passSome(): Unit = {
      val v = versions.length - 1
      val seconds = random.nextInt(800).toLong
      if (times(v) > 0) {
        pass(p, pins(v), seconds)
        times(v) += seconds
        // What an executor holds has the time of before.
        executors.foreach(_.close())
        executors = executors.map(_ => p.store("run", ttlMs = ttlMs))
      }
    }

    private def snapshot(): Unit = {
      val store = executors(random.nextInt(executors.length))
      val v = versions.length - 1
      store.open(v.toLong)
      store.requestSnapshot()
      if (store.snapshotIfDue()) {
        val opened = p.store("reader").open(v.toLong)
        assert(texts(opened.iterator(0)) == values(v))
        assert(opened.numKeys == values(v).size)
      }
    }

    private def batch(): Unit = {
      val store = executors(random.nextInt(executors.length))
      val v = versions.length - 1
      val opened = store.open(v.toLong)
      val session = opened.write()
      val now = math.max(opened.nextS, times(v))
      val begun = begin(v, now)
      val rows = mutable.HashMap.from(begun)
      (0 until random.nextInt(40)).foreach(_ => change(session, rows, now))
      assert(session.numKeys >= rows.count(_._2.expiry > now))
      if (random.nextInt(10) == 0) session.abort()
      else {
        val pin = session.commit()
        val time = entryOf(p, pin).time
        assert(time == (if (ttlMs.isEmpty) 0 else now))
        versions += rows.toMap
        pins += pin
        times += time
        if (random.nextBoolean()) {
          val read = store.open(v + 1L)
          assert(texts(read.iterator(0)) == shown(v + 1, math.max(read.nextS, time)))
        }
      }
    }

    /** Rows that the next version begins with. */
    private def begin(v: Int, now: Long): Map[String, Row] = {
      val wasOn = times(v) > 0
      if (v > 0 && wasOn != ttlMs.nonEmpty) {
        values(v).map { case (name, value) => name -> Row(value, expiryAt(now)) }
      } else versions(v)
    }

    private def expiryAt(now: Long): Long = ttlMs.fold(Long.MaxValue)(Expiry.after(now, _))

    private def change(
        session: WriteSession,
        rows: mutable.HashMap[String, Row],
        now: Long): Unit = {
      val name = s"k${random.nextInt(30)}"
      val k = key(0, name)
      val there = rows.get(name).filter(_.expiry > now).map(_.value)
      random.nextInt(5) match {
        case 0 =>
          session.remove(k, k.length)
          if (there.nonEmpty) rows.remove(name): Unit
        case 1 =>
          val out = new Slice
          val got = session.get(k, k.length, out)
          assert((if (got) Some(text(out)) else None) == there)
        case 2 => assert(session.contains(k, k.length) == there.nonEmpty)
        case _ =>
          val value = s"v${random.nextInt(1000)}"
          put(session, k, value)
          rows(name) = Row(value, expiryAt(now))
      }
    }
  }
}

private object ExpirySuite {
  private val Seeds = 12
  private val Steps = 60

  private final case class Row(value: String, expiry: Long)
}
