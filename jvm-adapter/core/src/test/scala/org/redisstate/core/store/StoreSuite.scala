package org.redisstate.core.store

import java.util.concurrent.CountDownLatch

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors._
import org.redisstate.core.format.{Bucketing, RowBlock, Segment, SegmentWriter, Vectors}
import org.redisstate.core.ids.{Keys, Pin}
import org.redisstate.core.local.{Base, Content, RowValidator, Slice}
import org.redisstate.core.protocol.SegmentGone
import org.redisstate.core.store.resources.Background

/** The store on a real server: versions, attempts, local state, snapshots and retention. */
class StoreSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def partition(
      name: String,
      versionsToRetain: Int = 100)(body: TestPartition => Unit): Unit =
    test(name) {
      val partition = new TestPartition(server, versionsToRetain)
      try body(partition)
      finally partition.close()
    }

  private def read(version: OpenVersion, key: Array[Byte]): Option[String] = {
    val slice = new Slice
    if (version.get(key, key.length, slice)) Some(text(slice)) else None
  }

  private def read(session: WriteSession, key: Array[Byte]): Option[String] = {
    val slice = new Slice
    if (session.get(key, key.length, slice)) Some(text(slice)) else None
  }

  private def commit(store: PartitionVersions, version: Long)(change: WriteSession => Unit): Pin = {
    val session = store.open(version).write()
    change(session)
    session.commit()
  }

  partition("changes are seen by the session, then by every store") { p =>
    val store = p.store("a")
    val session = store.open(0).write()
    put(session, key(0, "x"), "1")
    put(session, key(0, "y"), "2")
    put(session, key(0, "x"), "3")
    session.remove(key(0, "absent"), 8)
    assert(read(session, key(0, "x")).contains("3") && session.numKeys == 2)
    session.commit()
    commit(store, 1) { s =>
      s.remove(key(0, "y"), 3)
      assert(read(s, key(0, "y")).isEmpty && s.numKeys == 1)
    }
    assert(read(p.store("a reader").open(1), key(0, "y")).contains("2"))
    Seq(store, p.store("a"), p.store("a reader")).foreach { any =>
      val now = any.open(2)
      assert(read(now, key(0, "x")).contains("3") && read(
        now,
        key(0, "y")).isEmpty && now.numKeys == 1)
    }
  }

  partition("the number of keys is exact without any read") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 100).foreach(i => put(s, key(0, s"k$i"), "v")))
    commit(store, 1) { s =>
      (50 until 150).foreach(i => put(s, key(0, s"k$i"), "w"))
      (0 until 10).foreach(i => s.remove(key(0, s"k$i"), key(0, s"k$i").length))
      (900 until 910).foreach(i => s.remove(key(0, s"k$i"), key(0, s"k$i").length))
    }
    assert(p.store("a").open(2).numKeys == 140)
    assert(rows(p.store("a").open(2).iterator(0)).size == 140)
  }

  partition("in the steady state a batch takes two round trips") { p =>
    val store = p.store("a")
    commit(store, 0)(put(_, key(0, "x"), "0"))
    (1 to 5).foreach { v =>
      val before = store.client.roundTrips.get
      commit(store, v.toLong)(put(_, key(0, "x"), v.toString))
      assert(store.client.roundTrips.get - before == 2)
    }
    assert(store.counters.cacheHits.get == 5)
  }

  partition("an iterator shows the rows as they were when it was made") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 50).foreach(i => put(s, key(0, f"$i%03d"), "old")))
    val session = store.open(1).write()
    put(session, key(0, "050"), "old")
    val all = session.iterator(0)
    val k, v = new Slice
    var seen = 0
    while (all.next(k, v)) {
      assert(text(v) == "old")
      val copy = java.util.Arrays.copyOfRange(k.array, k.offset, k.offset + k.length)
      put(session, copy, "new")
      put(session, key(0, s"more$seen"), "new")
      val other = session.iterator(0)
      assert(other.next(new Slice, new Slice))
      seen += 1
    }
    assert(seen == 51 && session.numKeys == 102)
    session.abort()
  }

  partition("rows handed out stay as they were") { p =>
    val store = p.store("a")
    val session = store.open(0).write()
    put(session, key(0, "x"), "first")
    val slice = new Slice
    assert(session.get(key(0, "x"), 3, slice))
    put(session, key(0, "x"), "second")
    (0 until 10000).foreach(i => put(session, key(0, s"k$i"), "v" * 100))
    assert(text(slice) == "first")
    session.commit()
    assert(text(slice) == "first")
  }

  partition("a large write set is staged before its commit, and an abort leaves nothing of it") {
    p =>
      val store = p.store("a")
      commit(store, 0)(put(_, key(0, "x"), "0"))
      val lost = store.open(1).write()
      (0 until 30000).foreach(i => put(lost, key(0, s"k$i"), "v" * 300))
      lost.abort()
      lost.abort()
      assert(p.keys.count(_.startsWith("d:2:")) == 0)
      intercept[InternalException](put(lost, key(0, "x"), "1"))
      val kept = store.open(1).write()
      (0 until 30000).foreach(i => put(kept, key(0, s"k$i"), i.toString * 30))
      (0 until 30000).filter(_ % 3 == 0).foreach(i => put(kept, key(0, s"k$i"), "again"))
      (0 until 30000).filter(_ % 7 == 0).foreach(i =>
        kept.remove(key(0, s"k$i"), key(0, s"k$i").length))
      kept.commit()
      intercept[InternalException](kept.commit())
      Seq(store, p.store("a")).foreach { any =>
        val now = any.open(2)
        assert(now.numKeys == 1 + 30000 - 4286)
        assert(rows(now.iterator(0)).size == now.numKeys)
        assert(read(now, key(0, "k3")).contains("again") && read(now, key(0, "k21")).isEmpty)
        assert(read(now, key(0, "k100")).contains("100" * 30))
      }
  }

  partition("a snapshot is added when it is due, and is what a new store reads") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 5000).foreach(i => put(s, key(0, s"k$i"), s"v$i")))
    assert(!store.snapshotIfDue())
    (1 to 4).foreach(v => commit(store, v.toLong)(s => put(s, key(0, s"k$v"), "new")))
    store.open(5)
    assert(store.snapshotIfDue() && !store.snapshotIfDue())
    assert(p.keys.count(_.startsWith("s:5:")) == 1)
    (5 to 9).foreach(v => commit(store, v.toLong)(s => put(s, key(0, s"k$v"), "newer")))
    assert(!store.snapshotIfDue())
    val fresh = p.store("a")
    val now = fresh.open(10)
    assert(fresh.client.roundTrips.get < 20)
    assert(read(now, key(0, "k4")).contains("new") && read(now, key(0, "k9")).contains("newer"))
    assert(rows(now.iterator(0)).size == 5000 && now.numKeys == 5000)
    assert(rows(p.store("a reader").open(5).iterator(0)).size == 5000)
  }

  partition("a new store reads many small deltas in one round trip") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 500).foreach(i => put(s, key(0, s"k$i"), "0")))
    (1 to 20).foreach { v =>
      commit(store, v.toLong) { s =>
        put(s, key(0, s"k$v"), v.toString)
        s.remove(key(0, s"k${v + 100}"), key(0, s"k${v + 100}").length)
        put(s, key(0, s"k${v + 99}"), "again")
      }
    }
    val fresh = p.store("a")
    val now = fresh.open(21)
    assert(read(now, key(0, "k20")).contains("20") && read(now, key(0, "k119")).contains("again"))
    assert(read(now, key(0, "k120")).isEmpty && read(now, key(0, "k110")).contains("again"))
    assert(rows(now.iterator(0)).size == now.numKeys)
    assert(fresh.client.roundTrips.get == 3, "open, a look at all segments, all deltas")
  }

  partition("an ordered family is scanned in key order before and after a snapshot") { p =>
    def name(i: Int): Array[Byte] = key(3, f"$i%05d")
    def found(version: OpenVersion, from: Int, to: Int): Seq[String] =
      rows(version.rangeScan(3, Some(name(from).drop(2)), Some(name(to).drop(2)))).map(_._1)
    def wanted(numbers: Seq[Int]): Seq[String] = numbers.map(i => Vectors.hex(name(i)))
    val store = p.store("a")
    commit(store, 0) { s =>
      s.defineFamily(Ordered)
      (0 until 6000).reverse.foreach(i => put(s, name(i), s"v$i"))
      (0 until 1000).foreach(i => put(s, key(0, s"k$i"), "v"))
    }
    store.open(1)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    commit(store, 1) { s =>
      (100 until 200).foreach(i => s.remove(name(i), name(i).length))
      put(s, name(7000), "late")
      s.deleteRange(3, Some(name(5000).drop(2)), Some(name(5990).drop(2)))
    }
    Seq(store, p.store("a"), p.store("a reader")).foreach { any =>
      val now = any.open(2)
      assert(found(now, 50, 250) == wanted((50 until 100) ++ (200 until 250)))
      assert(found(now, 4990, 9000) == wanted((4990 until 5000) ++ (5990 until 6000) :+ 7000))
      assert(rows(now.iterator(3)).size == 6000 - 100 - 990 + 1)
      assert(rows(now.iterator(0)).size == 1000 && now.numKeys == 1000 + 4911)
      assert(read(now, name(42)).contains("v42") && read(now, name(150)).isEmpty)
      assert(found(any.open(2), 0, 100) == wanted(0 until 100))
    }
    val session = store.open(2).write()
    val scan = session.rangeScan(3, None, None)
    val k, v = new Slice
    (0 until 30).foreach { i =>
      assert(scan.next(k, v) && text(v) == s"v$i")
      session.remove(name(i), name(i).length)
      put(session, name(i + 1), "changed")
    }
    assert(rows(session.rangeScan(3, None, Some(name(32).drop(2)))).map(_._1) == wanted(Seq(
      30,
      31)))
    session.abort()
  }

  partition("what no retained version needs is dropped", versionsToRetain = 2) { p =>
    val store = p.store("a")
    (0 to 9).foreach(v => commit(store, v.toLong)(put(_, key(0, s"k$v"), "v")))
    store.open(10)
    assert(store.snapshotIfDue())
    (10 to 13).foreach(v => commit(store, v.toLong)(put(_, key(0, s"k$v"), "v")))
    store.open(14)
    assert(store.retain().dropped > 0)
    assert(p.damaged.isEmpty)
    val reader = p.store("a reader")
    intercept[VersionExpiredException](reader.open(3))
    assert(reader.open(12).numKeys == 12 && reader.open(14).numKeys == 14)
  }

  partition("a sibling's version replaces the cached one") { p =>
    val one = p.store("a")
    val other = p.store("a")
    commit(one, 0)(put(_, key(0, "x"), "0"))
    commit(other, 1)(put(_, key(0, "x"), "other"))
    commit(one, 1)(put(_, key(0, "x"), "one"))
    assert(read(other.open(2), key(0, "x")).contains("one"))
    assert(read(one.open(2), key(0, "x")).contains("one"))
  }

  partition("an older run is fenced") { p =>
    val old = p.store("a")
    commit(old, 0)(put(_, key(0, "x"), "0"))
    val session = old.open(1).write()
    put(session, key(0, "x"), "zombie")
    val now = p.store("b")
    commit(now, 1)(put(_, key(0, "x"), "1"))
    intercept[FencedException](session.commit())
    session.abort()
    assert(read(now.open(2), key(0, "x")).contains("1"))
  }

  partition("keys and values above the limits are refused before anything is sent") { p =>
    val session = p.store("a").open(0).write()
    intercept[LimitException](session.put(
      new Array[Byte]((1 << 20) + 3),
      (1 << 20) + 3,
      Array[Byte](1),
      1))
    val huge = new Array[Byte]((64 << 20) + 1)
    intercept[LimitException](session.put(key(0, "x"), 3, huge, huge.length))
    session.abort()
    assert(p.keys.forall(!_.startsWith("d:")))
  }

  partition("an ordered family of very long keys is committed: its blocks grow with them") { p =>
    val store = p.store("a")
    val session = store.open(0).write()
    session.defineFamily(Ordered)
    // Their first keys alone, one block each, would be more than a header can hold.
    val keys = (0 until 88).map { n =>
      val k = new Array[Byte](1 << 20)
      java.nio.ByteBuffer.wrap(k).put(0.toByte).put(3.toByte).putInt(n)
      k
    }
    keys.foreach(put(session, _, "v"))
    session.commit()
    val found = p.store("b").open(1).iterator(3)
    val key, value = new Slice
    assert(keys.forall { k =>
      found.next(key, value) && java.util.Arrays.equals(
        k,
        0,
        k.length,
        key.array,
        key.offset,
        key.offset + key.length)
    })
  }

  test("an index of ordered families that is too large is refused by name") {
    val rows = new RowBlock.Builder(64)
    (0 until 300).foreach { n =>
      val k = java.nio.ByteBuffer.allocate(6).put(Array[Byte](0, 3)).putInt(n).array
      rows.add(k, 0, k.length, k, 0, k.length)
    }
    val writer = new SegmentWriter("d:1:u", 1, headerBytesMax = 30)
    val refused = intercept[LimitException](writer.addOrdered(3, rows.result()))
    assert(refused.getMessage.contains("Nothing was committed"))
  }

  partition("deltas that would crowd a small snapshot become layers") { p =>
    val store = p.store("a")
    val first = commit(store, 0)(s => (0 until 50).foreach(i => put(s, key(0, s"k$i"), "0")))
    assert(store.addSnapshot(first))
    (1 to 20).foreach { v =>
      commit(store, v.toLong)(s => (0 until 100).foreach(i => put(s, key(0, s"k$v $i"), "1")))
    }
    def layers(version: Long): Int = {
      val fresh = p.store("a reader")
      assert(rows(fresh.open(version).iterator(0)).size == 50 + 100 * (version - 1))
      fresh.cache.versions.head.here.get.layers.length
    }
    assert(layers(3) == 0 && layers(21) == 1)
  }

  partition("missing, cut and foreign blocks are named errors") { p =>
    val store = p.store("a")
    val first = commit(store, 0)(s => (0 until 2000).foreach(i => put(s, key(0, s"k$i"), "v")))
    commit(store, 1)(put(_, key(0, "x"), "1"))
    val delta = Keys.segment(p.id, Segment.deltaIdent(1, first.uid)).getBytes
    val kept = p.raw.hget(delta, "0".getBytes)
    def readAll(): Unit = rows(p.store("a").open(2).iterator(0)): Unit
    p.raw.hset(delta, "0".getBytes, kept.dropRight(1))
    intercept[FormatException](readAll())
    p.raw.hset(delta, "0".getBytes, p.raw.hget(delta, "1".getBytes))
    intercept[FormatException](readAll())
    p.raw.hdel(delta, "0".getBytes)
    intercept[StateLostException](p.store("a").open(2))
    p.raw.hset(delta, "junk".getBytes, kept)
    intercept[FormatException](readAll())
    p.raw.del(delta)
    intercept[StateLostException](p.store("a").open(2))
    assert(read(store.open(2), key(0, "x")).contains("1"))
  }

  partition("a delta that is gone when its rows are read is lost state") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 500).foreach(i => put(s, key(0, s"k$i"), "v")))
    val newest = commit(store, 1)(put(_, key(0, "x"), "1"))
    val gate = new CountDownLatch(1)
    (1 to Background.HelpersMax).foreach(_ => Background.helping("waiting")(gate.await()))
    try {
      val opened = p.store("b").open(2)
      p.raw.del(Keys.segment(p.id, Segment.deltaIdent(2, newest.uid)).getBytes)
      intercept[StateLostException](read(opened, key(0, "x")))
    } finally gate.countDown()
  }

  partition("a row that does not fit the schema is refused") { p =>
    commit(p.store("a"), 0)(put(_, key(0, "x"), "1"))
    val strict: RowValidator = (_, _, _, _, _) => "too short"
    val damaged = intercept[FormatException](rows(p.store("a", strict).open(1).iterator(0)))
    assert(damaged.getMessage.contains("does not fit the schema of the operator: too short."))
    val changed = new RowValidator {
      override def check(bytes: Array[Byte], key: Int, keyLength: Int, value: Int, length: Int) =
        "too short"
      override def columnChanges(family: Int): String = "the value column 'w' (int) was added"
    }
    val other = intercept[FormatException](rows(p.store("a", changed).open(1).iterator(0)))
    assert(other.getMessage.startsWith(
      "[REDIS_FORMAT] the columns of the query are not those of the state: the value column 'w' (int) was added. "))
    assert(!other.getMessage.contains("damage"))
  }

  partition("memory above the budget is compressed, and still read") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 20000).foreach(i => put(s, key(0, s"k$i"), "v" * 50)))
    store.open(1)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    val before = store.localBytes
    store.cache.shrink(Long.MaxValue, everything = true)
    assert(store.localBytes < before / 2)
    assert(read(store.open(1), key(0, "k77")).contains("v" * 50))
    assert(rows(store.open(1).iterator(0)).size == 20000)
  }

  partition("compressed buckets that a snapshot has are forgotten and read again") { p =>
    val store = p.store("a")
    commit(store, 0)(s => (0 until 20000).foreach(i => put(s, key(0, s"k$i"), s"v$i")))
    store.open(1)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    commit(store, 1)(put(_, key(0, "k5"), "new"))
    store.cache.shrink(Long.MaxValue, everything = true)
    val before = store.localBytes
    assert(store.cache.drop(before / 2) >= before / 2 && store.localBytes <= before / 2)
    store.cache.drop(Long.MaxValue)
    assert(store.localBytes < 5000)
    val loaded = store.counters.bucketsLoaded.get
    assert(read(store.open(2), key(0, "k77")).contains("v77"))
    assert(read(store.open(2), key(0, "k5")).contains("new"))
    assert(store.counters.bucketsLoaded.get - loaded <= 2 * Base.ChunkBuckets)
    assert(rows(store.open(2).iterator(0)).size == 20000)
  }

  partition("a first delta that was sent in parts is no layer of a store that opens it") { p =>
    val store = p.store("a")
    val value = "v" * 60
    commit(store, 0)(s => (0 until 60000).foreach(i => put(s, key(0, s"k$i"), value)))
    commit(store, 1)(s => (0 until 100).foreach(i => put(s, key(0, s"k$i"), "new")))
    val first = p.client.open("", Some(1), None, Nil).segments.head
    assert(first.entry.buckets > Bucketing.bucketsFor(60000, 60000L * 80))
    val opened = p.store("b").open(2)
    assert(opened.local.content.layers.isEmpty)
    assert(read(opened, key(0, "k7")).contains("new"))
    assert(read(opened, key(0, "k59999")).contains(value))
    assert(rows(opened.iterator(0)).size == 60000)
  }

  test("a version whose segment was replaced under it is read again") {
    val gone = Segment.parse("s:1:u", "w 1 1 1 1 1 0 h")
    val lost = new Content(Base.remote(1, (_, _) => throw new SegmentGone(gone)), Nil)
    var reloads = 0
    val version = new LocalVersion(
      Pin(1, "u"),
      LiveRows.None,
      FamilyTable(Seq(Default), 0),
      lost,
      History.Empty,
      _ => {
        reloads += 1
        if (reloads == 1) lost else Content.empty()
      })
    assert(!version.get(0, key(0, "x"), 3, new Slice) && reloads == 2)
    assert(rows(version.scan(_.iterator(0, ordered = false, version.hashOf))).isEmpty)
  }

  test("versions of the vectors are read from the server as the vectors say") {
    val segments = Vectors
      .objects(Vectors.read("segments").getAsJsonObject.get("good"))
      .map(one => Vectors.text(one, "name") -> one)
      .toMap
    Vectors.objects(Vectors.read("versions")).foreach { version =>
      withClue(Vectors.text(version, "name")) {
        val p = new TestPartition(server)
        try {
          val chain = Vectors.items(version.get("segments")).map(name => segments(name.getAsString))
          chain.foreach { one =>
            p.plant(
              Vectors.text(one, "field"),
              Vectors.text(one, "ident"),
              Vectors.text(one, "entry"),
              Vectors.fields(one.get("fields")))
          }
          val last =
            Segment.parse(Vectors.text(chain.last, "field"), Vectors.text(chain.last, "entry"))
          p.plantHead(last.version, last.uid)
          val opened = p.store("reader").open(last.version)
          assert(Vectors.families(version.get("families")).contains(opened.families))
          val found = opened.families.flatMap(f => rows(opened.iterator(f.id)))
          val wanted = Vectors.items(version.get("rows")).map { row =>
            val parts = Vectors.items(row).map(_.getAsString)
            parts.head -> parts(1)
          }
          assert(found.sorted == wanted.sorted)
          // Expired rows are counted until a snapshot leaves them out.
          val counted = opened.numKeys
          assert(if (opened.families.exists(_.ttl)) counted >= wanted.size
          else counted == wanted.size)
        } finally p.close()
      }
    }
  }
}
