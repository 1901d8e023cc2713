package org.redisstate.core.store

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Script, Transport, TransportException}
import org.redisstate.core.copy.{CopiedStore, CopyFiles, CopyPart}
import org.redisstate.core.errors.{
  FileLostException,
  FormatException,
  StateLostException,
  UnavailableException
}
import org.redisstate.core.format.{BlockSigner, Place}
import org.redisstate.core.ids.Keys
import org.redisstate.core.local.Slice
import org.redisstate.core.places.{FileFolders, FileStore, PlayedFiles}
import org.redisstate.core.protocol._

/** History that leaves Redis for files, and is read from there (docs/format.md, section 17). */
class HistoryInFilesSuite extends AnyFunSuite with FilesFixture {
  import HistoryInFilesSuite._

  private val signer = Some(new BlockSigner(Array.fill(32)(9.toByte)))

  for (format <- Seq(CheckpointFormat.V1, CheckpointFormat.V2); signed <- Seq(None, signer))
    test(s"every version reads as before: format ${format.number}, signed ${signed.nonEmpty}") {
      onServer() { (p, files) =>
        val query = begun(p, format, signed)
        val moved = move(query, signed)
        assert(moved.segments > 4 && moved.bytes > 0)
        assert(placed(p).size == moved.segments)
        assert(p.meta("f") == "2")
        assert(rows(p).values.toSeq.map(_.split(' ').take(3).toSeq.patch(1, Nil, 1)) ==
          Seq(Seq("u", moved.segments.toString)))
        expire(p)
        query.checkAll()
        assert(files.reads.nonEmpty)
        assert(move(query, signed).segments == 0)
        // It goes on, and moves what becomes history then.
        query.commit(5)
        query.maintain()
        assert(move(query, signed).segments > 0)
        expire(p)
        query.checkAll()
      }
    }

  test("a query goes back into its history, and on") {
    onServer() { (p, _) =>
      val query = begun(p)
      move(query)
      expire(p)
      query.rewind(3)
      query.commit(6)
      query.checkAll()
      query.maintain()
      // What went with the rewind, and with retention, frees the files that had it.
      move(query)
      expire(p)
      query.checkAll()
    }
  }

  test("the newest version, and the deltas over its base, stay in Redis") {
    onServer() { (p, files) =>
      val query = begun(p)
      query.commit(2)
      move(query)
      val before = files.reads.size
      query.check(query.at)
      query.check(query.at - 1)
      query.check(query.at - 2)
      assert(files.reads.size == before)
    }
  }

  test("a scan that is under way when its segments move goes on") {
    onServer() { (p, _) =>
      val query = begun(p)
      val snapshot = p.raw.hkeys(Keys.meta(p.id)).asScala.filter(_.startsWith("s:"))
        .map(_.split(':')(1).toLong).min
      val store = p.store("reader")
      val rows = store.open(snapshot).iterator(0)
      val key, value = new Slice
      assert(rows.next(key, value))
      move(query)
      expire(p)
      var count = 1
      while (rows.next(key, value)) count += 1
      assert(count == query.count(snapshot))
    }
  }

  test("a fork reads segments that are in files of its parent, whenever they moved") {
    onServer() { (p, files) =>
      val query = begun(p)
      val other = p.ofGen(TestPartition.newGen())
      try {
        val early = query.fork(other, "fork", 4)
        move(query)
        expire(p)
        early.check(4)
        early.check(3)
        query.commit(4)
        query.maintain()
        // The parent drops what the fork pins: it is set aside, and stays in its file.
        query.commit(30)
        query.maintain()
        move(query)
        expire(p)
        early.check(4)
        assert(rows(p).values.exists(_.startsWith("u ")))
        assert(files.reads.nonEmpty)
      } finally other.close()
    }
  }

  test("changes of a version whose delta is in a file are read") {
    onServer() { (p, _) =>
      val query = begun(p)
      val store = p.store("reader")
      val before = changes(store, 3)
      move(query)
      expire(p)
      assert(changes(p.store("reader"), 3) == before)
      assert(before.nonEmpty)
    }
  }

  test("a copy has the segments that are in files") {
    onServer() { (p, _) =>
      val query = begun(p)
      val before = copyOf(p, query, 4)
      move(query)
      expire(p)
      assert(copyOf(p, query, 4) sameElements before)
    }
  }

  for (step <- Seq("create", "write", "close", "read"))
    test(s"a mover that ends at $step moved nothing, and another one does") {
      onServer() { (p, files) =>
        val query = begun(p)
        files.before = name => if (name == step) throw new UnavailableException("stopped")
        intercept[UnavailableException](move(query)): Unit
        files.before = _ => ()
        assert(placed(p).isEmpty)
        assert(rows(p).values.map(_.take(1)).toSeq == Seq("n"))
        query.checkAll()
        assert(move(query).segments > 0)
        expire(p)
        query.checkAll()
        assert(files.reads.distinct.size == 1)
      }
    }

  for (script <- Seq("announce" -> Script.Announce, "place" -> Script.Place);
    applied <- Seq(false, true))
    test(s"a mover whose ${script._1} was ${if (applied) "done" else "lost"} without a reply") {
      val lossy = new Lossy(script._2, applied)
      onServer(between = lossy.before) { (p, _) =>
        val query = begun(p)
        lossy.isOn = true
        assert(move(query).segments > 0)
        assert(!lossy.isOn)
        expire(p)
        query.checkAll()
      }
    }

  test("a zombie that enters its file after retention, or after the file was condemned, changes nothing") {
    onServer(retained = 5) { (p, files) =>
      val query = begun(p)
      files.before = step =>
        if (step == "close") {
          files.before = _ => ()
          // Meanwhile another one moves the same segments, and retention drops all of them.
          assert(move(query).segments > 0)
          dropMoved(query)
        }
      assert(move(query).segments == 0)
      val states = rows(p).view.mapValues(_.take(1)).toMap
      assert(states.values.toSeq.sorted == Seq("d", "n"))
      query.checkAll()
    }
  }

  test("an upload that is cut moves nothing") {
    val clock = new Slept
    onServer(clock = clock) { (p, files) =>
      val query = begun(p)
      files.cutBytes = 3
      val found = intercept[UnavailableException](move(query))
      assert(found.getMessage.contains("not as it was written"))
      assert(placed(p).isEmpty)
      query.checkAll()
    }
  }

  test("a file that its store shows late is waited for") {
    val clock = new Slept
    onServer(clock = clock) { (p, files) =>
      val query = begun(p)
      files.lateMs = 4000
      assert(move(query).segments > 0)
      expire(p)
      query.checkAll()
    }
  }

  test(
    "a file that is gone is FILE_LOST, and one that is cut; the message says where and what to do") {
    val clock = new Slept
    onServer(clock = clock) { (p, files) =>
      val query = begun(p)
      move(query)
      expire(p)
      val file = files.all.head
      val whole = files.bytes(file)
      files.delete(file)
      Seq("is not there", "is cut").foreach { why =>
        val found = intercept[FileLostException](query.check(2))
        Seq(
          why,
          "operator 0 partition 3",
          "version ",
          "d:",
          file,
          files.folder,
          "redis-state doctor")
          .foreach(word => assert(found.getMessage.contains(word), word))
        assert(found.kind == "FILE_LOST" && !found.retryable)
        files.put(file, whole.take(100))
      }
      files.put(file, whole)
      query.checkAll()
    }
  }

  test("files are read where they are, when their folder has moved") {
    val (former, latter) = (new PlayedFiles, new PlayedFiles)
    val folders = new MovedFolder(former)
    Using.resource(new RedisServerProcess()) { server =>
      val p = new TestPartition(server, 100, clock = new Slept, folders = Some(folders))
      try {
        val query = begun(p)
        move(query)
        expire(p)
        query.check(2)
        former.all.foreach { name =>
          latter.put(name, former.bytes(name))
          former.delete(name)
        }
        folders.now = latter
        query.checkAll()
        assert(latter.reads.nonEmpty)
      } finally p.close()
    }
  }

  test("a folder that does not answer, or is not there, is UNAVAILABLE") {
    val clock = new Slept
    onServer(clock = clock) { (p, files) =>
      val query = begun(p)
      move(query)
      expire(p)
      files.answers = false
      intercept[UnavailableException](query.check(2)): Unit
      files.answers = true
      val all = files.all.map(name => name -> files.bytes(name))
      all.foreach { case (name, _) => files.delete(name) }
      files.isThere = false
      val found = intercept[UnavailableException](query.check(2))
      assert(found.retryable && found.getMessage.contains("placesFolder"))
      all.foreach { case (name, bytes) => files.put(name, bytes) }
      query.checkAll()
    }
  }

  test("Redis that lost a segment is STATE_LOST, as before") {
    onServer() { (p, _) =>
      val query = begun(p)
      p.raw.keys("*").asScala.filter(_.contains("}:d:")).foreach(p.raw.del(_))
      intercept[StateLostException](query.check(2)): Unit
    }
  }

  test("a file with changed bytes, or of another segment, is FORMAT") {
    onServer() { (p, files) =>
      val query = begun(p)
      move(query)
      expire(p)
      val file = files.all.head
      val whole = files.bytes(file)
      // Some are not read: the delta of a version that has a snapshot.
      val bent = whole.clone
      placed(p).values.map(Place.parse("", _)).foreach {
        case place: Place.InFile =>
          (0 until 9).foreach(i => bent((place.offset + 20 + i).toInt) = 0)
        case other => fail(other.toString)
      }
      files.put(file, bent)
      intercept[FormatException]((query.floor to query.at).foreach(query.check)): Unit
      files.put(file, whole)
      query.checkAll()
    }
  }

  test("a segment that is damaged in Redis stays there, and costs one file") {
    onServer() { (p, files) =>
      begun(p): Unit
      val history = History(p).sorted
      val key = Keys.segment(p.id, history.head)
      p.raw.hset(key, "0", "damaged")
      val client = p.client
      assert(client.files.moveHistory().segments == 0)
      val second = client.files.moveHistory()
      assert(second.segments > 0 && !placed(p).contains(history.head))
      assert(client.files.moveHistory().segments == 0)
      assert(files.all.size == 2)
    }
  }

  test("an ephemeral partition, one that was purged, and one without meta have no files") {
    onServer() { (p, files) =>
      assert(p.client.files.moveHistory() == MoveReport(0, 0))
      begun(p): Unit
      p.raw.pexpire(Keys.meta(p.id), 100000L)
      assert(p.client.files.moveHistory() == MoveReport(0, 0))
      p.raw.persist(Keys.meta(p.id))
      p.raw.hset(Keys.meta(p.id), "f", s"purged:${p.id.gen}")
      assert(p.client.files.moveHistory() == MoveReport(0, 0))
      assert(files.all.isEmpty)
    }
  }

  test("history leaves in bounded pieces") {
    onServer() { (p, files) =>
      val query = new Timeline(p, "a")
      query.commit(130)
      query.maintain()
      val counts = Iterator.continually(move(query).segments).takeWhile(_ > 0).toSeq
      assert(counts == Seq(100, counts.sum - 100) && counts.sum > 110)
      assert(files.all.size == 2)
      expire(p)
      Seq(40L, 99L, 100L, 101L, 129L).foreach(query.check)
    }
  }

  private def changes(store: PartitionVersions, version: Long): Seq[String] = {
    val key, value = new Slice
    val found = Seq.newBuilder[String]
    val changes = store.open(version).changes(0)
    Iterator.continually(changes.next(key, value)).takeWhile(_.nonEmpty).foreach(change =>
      found += s"$change ${TestPartition.text(key)}")
    found.result()
  }

  private def copyOf(p: TestPartition, query: Timeline, version: Long): Array[Byte] = {
    val source = p.copySource(None)
    val run = p.meta("r")
    val part = source.parts(Seq(CopiedStore(0, "default", 0)), run, version)
    assert(part.isEmpty || query.at >= version)
    val id = p.id
    val opened = p.client.open("", Some(version), None, Nil)
    val files = new PlayedFiles
    new CopyFiles(source, files, None, _ => None, _ => ())
      .write(CopyPart(id, opened.pin, opened.segments, "1", "100")): Unit
    files.bytes(files.all.head)
  }
}

private object HistoryInFilesSuite {

  /** A folder that is known until somebody looks for it again. */
  final class MovedFolder(former: PlayedFiles) extends FileFolders {
    @volatile var now: PlayedFiles = former
    @volatile private var known: PlayedFiles = former
    override def of(gen: String): FileStore = known
    override def lookAgain(gen: String): Boolean = {
      val moved = known ne now
      known = now
      moved
    }
  }

  private object History {

    /** Idents of segments in Redis that are older than the newest snapshot. */
    def apply(p: TestPartition): Seq[String] = {
      val fields = p.raw.hkeys(Keys.meta(p.id)).asScala.toSeq
      val base = fields.filter(_.startsWith("s:")).map(_.split(':')(1).toLong).max
      fields.filter(f => f.startsWith("d:") && f.split(':')(1).toLong < base)
    }
  }

  /** Loses the connection once, at a script. */
  final class Lossy(script: Script, applied: Boolean) {
    var isOn = false

    def before(inner: Transport): Transport = new Transport {
      override def exchange(commands: Seq[Command]): Seq[AnyRef] =
        if (isOn && commands.exists(script.isRunBy)) {
          isOn = false
          if (applied) inner.exchange(commands): Unit
          throw new TransportException("lost", null)
        } else inner.exchange(commands)
      override def close(): Unit = inner.close()
    }
  }
}
