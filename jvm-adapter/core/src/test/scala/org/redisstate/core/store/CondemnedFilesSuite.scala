package org.redisstate.core.store

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.ids.Keys
import org.redisstate.core.protocol._

/** Files that nothing needs any more: condemned, reported, and deleted behind checks. */
class CondemnedFilesSuite extends AnyFunSuite with FilesFixture {
  import CondemnedFilesSuite._

  test("condemned files are reported, and deleted where all checks hold") {
    onServer(retained = 5) { (p, files) =>
      val query = begun(p)
      move(query)
      dropMoved(query)
      val file = files.all.head
      assert(rows(p)(file).startsWith("d "))
      val opened = p.meta("o").toLong
      def look(
          deletes: Boolean,
          newest: => Either[String, Long],
          copied: Boolean = false,
          graceMs: Long = 3600000) =
        p.client.files.lookAfter(
          FilePolicy(graceMs, deletes, new Checks(newest, copied)),
          sweeps = false)
      def stays(report: FileReport): Unit = {
        assert(report.deleted == 0 && files.all.contains(file) && rows(p).contains(file))
      }
      val young = look(deletes = true, Right(opened))
      stays(young)
      assert(young.due == 0)
      age(p, file, 2 * 3600000L)
      val reported = look(deletes = false, fail())
      stays(reported)
      assert(reported.due == 1 && reported.bytes == files.bytes(file).length)
      stays(look(deletes = true, Left("the marker is another gen's")))
      stays(look(deletes = true, Right(opened + 1)))
      stays(look(deletes = true, Right(opened), copied = true))
      files.before = step => if (step == "delete") throw new UnavailableException("down")
      intercept[UnavailableException](look(deletes = true, Right(opened))): Unit
      files.before = _ => ()
      stays(FileReport(0, 0, 0, 0))
      assert(look(deletes = true, Right(opened)).deleted == 1)
      assert(files.all.isEmpty && rows(p).isEmpty)
      query.checkAll()
    }
  }

  test("a condemned file that has a segment is not deleted") {
    onServer() { (p, files) =>
      val query = begun(p)
      move(query)
      expire(p)
      val file = files.all.head
      p.raw.hset(Keys.files(p.id), file, "d 1 0 0")
      val policy = FilePolicy(
        3600000,
        deletes = true,
        new Checks(Right(p.meta("o").toLong), isCopied = false))
      val report = p.client.files.lookAfter(policy, sweeps = true)
      assert(report.deleted == 0 && files.all.contains(file))
      query.checkAll()
    }
  }

  test("in a folder that others may have, files are reported, and neither condemned nor deleted") {
    onServer(retained = 5) { (p, files) =>
      val query = begun(p)
      move(query)
      dropMoved(query)
      val file = files.all.head
      age(p, file, 2 * 3600000L)
      val unknown = file.replaceAll("[0-9a-f]{32}", "f" * 32)
      files.put(unknown, Array[Byte](1))
      val newest = p.meta("o").toLong
      val shared = new Checks(Right(newest), isCopied = false, ownsFolder = false)
      val report =
        p.client.files.lookAfter(FilePolicy(3600000, deletes = true, shared), sweeps = true)
      val bytes = files.bytes(file).length.toLong
      assert(report == FileReport(0, 0, due = 1, bytes, unknown = 1))
      assert(files.all.contains(file) && rows(p).keySet == Set(file))
    }
  }

  test("a file whose close takes longer than a day is condemned, and gets no segment") {
    onServer() { (p, files) =>
      val query = begun(p)
      val policy = FilePolicy(3600000, deletes = false, new Checks(Right(0), isCopied = false))
      files.before = step =>
        if (step == "close") {
          files.before = _ => ()
          age(p, rows(p).keys.head, 25 * 3600000L)
          assert(p.client.files.lookAfter(policy, sweeps = true).condemned == 1)
        }
      assert(move(query).segments == 0)
      assert(rows(p).values.map(_.take(1)).toSeq == Seq("d"))
      assert(move(query).segments > 0)
      expire(p)
      query.checkAll()
    }
  }

  test("a file that its store lists a minute late is condemned by a later sweep") {
    val clock = new Slept
    onServer(clock = clock) { (p, files) =>
      val query = begun(p)
      move(query)
      files.listedLateMs = 60000
      files.put(files.all.head.replaceAll("[0-9a-f]{32}", "f" * 32), Array[Byte](1))
      val policy = FilePolicy(3600000, deletes = false, new Checks(Right(0), isCopied = false))
      assert(p.client.files.lookAfter(policy, sweeps = true).condemned == 0)
      clock.sleep(60000)
      assert(p.client.files.lookAfter(policy, sweeps = true).condemned == 1)
      expire(p)
      query.checkAll()
    }
  }

  test("what got no segment is condemned after a day, and a file that Redis does not know") {
    onServer() { (p, files) =>
      val query = begun(p)
      files.before = step => if (step == "close") throw new UnavailableException("stopped")
      intercept[UnavailableException](move(query)): Unit
      files.before = _ => ()
      val announced = rows(p).keys.head
      val unknown = announced.replaceAll("[0-9a-f]{32}", "f" * 32)
      files.put(unknown, Array[Byte](1))
      files.put(announced.takeWhile(_ != '/') + "/readme.txt", Array[Byte](1))
      move(query)
      val used = rows(p).collectFirst { case (file, row) if row.startsWith("u ") => file }.get
      val policy = FilePolicy(3600000, deletes = false, new Checks(Right(0), isCopied = false))
      assert(p.client.files.lookAfter(policy, sweeps = false).condemned == 0)
      assert(p.client.files.lookAfter(policy, sweeps = true).condemned == 1)
      age(p, announced, 25 * 3600000L)
      age(p, used, 25 * 3600000L)
      assert(p.client.files.lookAfter(policy, sweeps = true).condemned == 1)
      val states = rows(p).view.mapValues(_.take(1)).toMap
      assert(states == Map(announced -> "d", unknown -> "d", used -> "u"))
      expire(p)
      query.checkAll()
    }
  }
}

private object CondemnedFilesSuite {
  final class Checks(
      newest: => Either[String, Long],
      isCopied: Boolean,
      override val ownsFolder: Boolean = true)
      extends DeletionChecks {
    override def newestBatch(): Either[String, Long] = newest
    override def copied(files: Seq[String]): Set[String] = if (isCopied) files.toSet else Set.empty
  }
}
