package org.redisstate.core.store

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.{StateLostException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, MultiValue, Vectors}
import org.redisstate.core.ids.{Keys, Pin}
import org.redisstate.core.local.Expiry

/** Whole versions of partitions with a bound: their rows go into a file, and Redis by. */
class FillIntoFileSuite extends AnyFunSuite with FilesFixture {
  import FillIntoFileSuite._
  import TestPartition._

  private type Rows = Seq[(Array[Byte], Array[Byte])]

  /** Rows of all kinds of families, each key once, that do not compress. */
  private def rowsOf(count: Int, bytes: Int): Rows = {
    val random = new Random(7)
    (0 until count).map { i =>
      val text = random.nextBytes(bytes)
      i % 5 match {
        case 1 => prefixed(s"p${i % 10}", s"k$i") -> text
        case 2 => key(2, s"k$i") -> MultiValue.encode(Seq(text, Array(i.toByte)))
        case 3 => key(3, f"t$i%08d") -> text
        case _ => key(0, s"k$i") -> text
      }
    }
  }

  private def session(
      p: TestPartition,
      uid: Option[String] = None,
      signer: Option[BlockSigner] = None,
      timeS: Option[Long] = None): FillSession = {
    val store = p.store("a", signer = signer)
    store.client.bindTo(Share)
    val session = store.openEmpty(6).fill(uid, timeS, StageBytes, None)
    Seq(Prefixed, Lists, Ordered).foreach(session.defineFamily)
    session
  }

  private def fill(session: FillSession, rows: Rows): Pin = {
    rows.foreach { case (k, value) =>
      session.put(k, k.length, value, value.length, Expiry.Never)
    }
    try session.commit()
    catch {
      case e: Throwable =>
        session.abort()
        throw e
    }
  }

  private def found(version: OpenVersion): Seq[(String, String)] =
    version.families.flatMap(family => TestPartition.rows(version.iterator(family.id))).sorted

  private def wanted(rows: Rows): Seq[(String, String)] = rows.map { case (k, value) =>
    Vectors.hex(k, 0, k.length) -> Vectors.hex(value, 0, value.length)
  }.sorted

  private def blocksInRedis(p: TestPartition): Set[String] =
    p.keys.filter(name => "dsn".contains(name.head))

  for {
    (count, bytes) <- Seq(4000 -> 60, 4000 -> 900)
    signed <- Seq(None, Some(new BlockSigner(Array.fill(32)(9.toByte))))
    timeS <- Seq(None, Some(1000L)) if signed.isEmpty || timeS.isEmpty
  }
    test(
      s"$count rows of $bytes bytes pass Redis by: signed ${signed.nonEmpty}, expiring ${timeS.nonEmpty}") {
      onServer() { (p, files) =>
        val rows = rowsOf(count, bytes)
        files.before = step => if (step == "write") assert(blocksInRedis(p).isEmpty)
        val pin = fill(session(p, signer = signed, timeS = timeS), rows)
        assert(pin.version == 7 && files.all.size == 1 && blocksInRedis(p).isEmpty)
        assert(placed(p).keySet == Set(s"d:7:${pin.uid}"))
        assert(statesOf(p) == Seq("u"))
        val reader = p.store("a reader", signer = signed)
        assert(found(reader.open(7)) == wanted(rows))
        assert(found(p.store("a pass", signer = signed).openOnce(7, None)) == wanted(rows))
        assert(reader.open(7).numKeys == rows.size)
      }
    }

  test("buckets are as full as those of a snapshot, however many layers there were") {
    onServer() { (p, _) =>
      val rows = rowsOf(20000, 300)
      val pin = fill(session(p), rows)
      val entry = p.meta(s"d:7:${pin.uid}").split(' ')
      assert(entry(5).toInt == 512 && entry(3).toInt < 1200)
    }
  }

  test("few rows stay in Redis") {
    onServer() { (p, files) =>
      val rows = rowsOf(200, 20)
      fill(session(p), rows)
      assert(files.all.isEmpty && blocksInRedis(p).size == 1)
      assert(found(p.store("a reader").open(7)) == wanted(rows))
    }
  }

  for (step <- Seq("create", "write", "close", "read"))
    test(s"a writer that is killed before the step $step leaves nothing but an announced file") {
      onServer() { (p, files) =>
        val rows = rowsOf(4000, 900)
        files.before = name => if (name == step) throw new KilledException
        intercept[KilledException](fill(session(p), rows))
        files.before = _ => ()
        assert(blocksInRedis(p).isEmpty && statesOf(p) == Seq("n"))
        intercept[StateLostException](p.store("a reader").open(7))
        fill(session(p), rows)
        assert(found(p.store("a reader").open(7)) == wanted(rows))
        assert(statesOf(p).sorted == Seq("n", "u"))
      }
    }

  test("replies that are lost leave one version with its file") {
    onServer(new Slept, between = new LossyTransport(_)) { (p, _) =>
      val rows = rowsOf(4000, 900)
      fill(session(p), rows)
      assert(found(p.store("a reader").open(7)) == wanted(rows))
      assert(statesOf(p).count(_ == "u") == 1)
    }
  }

  test("attempts with one uid give the same version, whatever the order of their rows") {
    onServer() { (p, _) =>
      val uid = Pin.newUid()
      val rows = rowsOf(4000, 900)
      val late = session(p, Some(uid))
      fill(session(p, Some(uid)), rows)
      fill(late, rows.reverse)
      assert(found(p.store("a reader").open(7)) == wanted(rows))
      assert(statesOf(p).sorted == Seq("n", "u"))
    }
  }

  test("a file that was condemned meanwhile is not entered") {
    onServer() { (p, files) =>
      files.before = step =>
        if (step == "close") {
          val (file, row) = rows(p).head
          p.raw.hset(Keys.files(p.id), file, row.replaceFirst("n", "d"))
          ()
        }
      val refused = intercept[UnavailableException](fill(session(p), rowsOf(4000, 900)))
      assert(refused.getMessage.contains("its file was condemned"))
      intercept[StateLostException](p.store("a reader").open(7))
    }
  }

  test("a query goes on from a version in a file, and its snapshot has the same rows") {
    onServer(retained = 2) { (p, files) =>
      val rows = rowsOf(4000, 300)
      fill(session(p), rows)
      val store = p.store("b")
      store.client.bindTo(Share)
      def commit(versions: Range): Unit = versions.foreach { version =>
        val write = store.open(version.toLong).write()
        put(write, key(0, "more"), s"of $version")
        write.commit()
      }
      commit(7 to 12)
      store.open(13)
      store.requestSnapshot()
      assert(store.snapshotIfDue())
      commit(13 to 16)
      store.retain()
      val more = key(0, "more") -> "of 16".getBytes
      assert(found(p.store("a reader").open(17)) == wanted(rows :+ more))
      assert(files.all.size == 2 && statesOf(p).sorted == Seq("d", "u"))
    }
  }

  /** States of the files. */
  private def statesOf(p: TestPartition): Seq[String] = rows(p).values.map(_.take(1)).toSeq
}

private object FillIntoFileSuite {
  private val Share = 200000L

  /** Less than the hashed rows of most tests, so that several layers leave. */
  private val StageBytes = 200 << 10
}
