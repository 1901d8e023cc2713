package org.redisstate.core.store

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, DataInputStream}
import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.copy.CopiedStore
import org.redisstate.core.errors.{FencedException, StateLostException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, Segment}
import org.redisstate.core.ids.{Keys, Sha256}

/** Copies that the driver makes of a partition, and reasons to make no copy. */
class CopySourceSuite extends AnyFunSuite {
  import CopySourceSuite._
  import TestPartition._

  private val signer = Some(new BlockSigner(Array.fill(32)(7.toByte)))
  private val listed = Seq(CopiedStore(0, "default", 1))

  test("a partition is copied as it is stored, snapshot and deltas, signatures included") {
    onServer { partition =>
      val store = partition.store("a", signer = signer)
      (0L to 4L).foreach { version =>
        commit(store, version)
        if (version == 2) {
          store.open(3)
          store.requestSnapshot()
          assert(store.snapshotIfDue())
        }
      }
      store.open(5)
      val source = partition.copySource(signer)
      val part = source.parts(listed, "a", 5).head
      val copied = read(bytesOf(out => source.write(part, out)))
      assert(copied.head.head == s"${partition.id.gen} 0 0 ${Sha256.first16("default")} 5 " +
        s"${part.pin.uid} 1 100")
      assert(copied.head.tail.map(_.takeWhile(_ != ' ').take(4)) == Seq("d:5:", "d:4:", "s:3:"))
      assert(copied.values.toSet == part.segments.flatMap(stored(partition, _)).toSet)
      assert(copied.values.forall(_._2.head == 0xb8.toByte))
    }
  }

  test("a number of partitions that nobody listed is found") {
    onServer { partition =>
      commit(partition.store("a"), 0)
      commit(partition.store("a"), 1)
      val parts = partition.copySource(None).parts(Seq(CopiedStore(0, "default", 0)), "a", 1)
      assert(parts.map(_.id) == Seq(partition.id))
    }
  }

  test("what is not opened yet, is held by another run, or is not there, is not copied") {
    onServer { partition =>
      val store = partition.store("a")
      (0L to 1L).foreach(commit(store, _))
      val source = partition.copySource(None)
      assert(source.parts(listed, "a", 1).map(_.pin.version) == Seq(1))
      val early = intercept[UnavailableException](source.parts(listed, "a", 2))
      assert(early.getMessage.contains("has opened version 1 only"))
      assertThrows[StateLostException](
        source.parts(Seq(CopiedStore(0, "default", 2)), "a", 1))
      commit(partition.store("b"), 2)
      val over = intercept[FencedException](source.parts(listed, "a", 2))
      assert(over.getMessage.contains("the run b holds operator 0 partition 0"))
    }
  }

  for (signed <- Seq(signer, None))
    test(
      s"a copy of a fork is restored without its parent: ${signed.fold("not signed")(_ => "signed")}") {
      onServer { from =>
        val parent = new Timeline(from, "parent", signer = signed)
        parent.commit(3)
        parent.maintain()
        parent.commit(1)
        Using.resource(new RedisServerProcess()) { anew =>
          val to = from.ofGen(newGen())
          try {
            val fork = parent.fork(to, "fork", parent.at)
            fork.commit(2)
            val version = fork.at - 1
            val source = to.copySource(signed)
            val part = source.parts(listed, fork.run, version).head
            assert(part.segments.map(_.gen) == Seq("", from.id.gen, from.id.gen))
            val copied = read(bytesOf(out => source.write(part, out)))
            assert(copied.head.head.startsWith(s"${to.id.gen} 0 0 "))
            val blocks = part.segments.map(_.entry.blocks)
            assert(copied.values.size == blocks.sum)
            val restored = new TestPartition(anew, gen = to.id.gen, number = 0)
            try {
              restore(restored, part.segments.zip(blocks), copied.values, version)
              fork.checkAt(restored, version)
            } finally restored.close()
          } finally to.close()
        }
      }
    }

  /** Does what `redis-state restore` does with a file that it has checked. */
  private def restore(
      p: TestPartition,
      segments: Seq[(Segment, Int)],
      values: Seq[(String, Seq[Byte])],
      version: Long): Unit = {
    var left = values
    segments.foreach { case (segment, blocks) =>
      val key = Keys.segment(p.id, segment.ident).getBytes(UTF_8)
      val fields = left.take(blocks).map { case (name, value) =>
        name.getBytes(UTF_8) -> value.toArray
      }
      left = left.drop(blocks)
      p.raw.hset(key, fields.toMap.asJava)
    }
    val entries = segments.flatMap { case (s, _) => Seq(s.field, s.entry.text) }
    val newest = segments.head._1
    val head = Seq(version.toString, newest.uid, segments.last._1.version.toString, "100", "1")
    assert(ForkedPartitions.script(p.backend, "restore", p.id, head ++ entries: _*) == Seq("OK"))
    ()
  }

  private def commit(store: PartitionVersions, version: Long): Unit = {
    val session = store.open(version).write()
    (0 to 50).foreach(i => put(session, key(0, s"x$i"), s"$version.$i"))
    session.commit()
    ()
  }

  private def stored(partition: TestPartition, segment: Segment) =
    partition.raw.hgetAll(Keys.segment(partition.id, segment.ident).getBytes(UTF_8)).asScala.map {
      case (name, value) => new String(name, US_ASCII) -> value.toSeq
    }

  private def onServer(body: TestPartition => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val partition = new TestPartition(server, number = 0)
      try body(partition)
      finally partition.close()
    }

  private def bytesOf(write: ByteArrayOutputStream => Unit): Array[Byte] = {
    val out = new ByteArrayOutputStream
    write(out)
    out.toByteArray
  }
}

private object CopySourceSuite {

  /** A file as docs/format.md, section 11, describes it. */
  final case class File(head: Seq[String], values: Seq[(String, Seq[Byte])])

  def read(raw: Array[Byte]): File = {
    val in = new DataInputStream(new ByteArrayInputStream(raw))
    def text(length: Int) = new String(in.readNBytes(length), US_ASCII)
    assert(text(8) == "rs-copy1")
    val head = text(in.readInt()).split('\n').toSeq
    val values = Seq.newBuilder[(String, Seq[Byte])]
    while (in.available > 0) {
      val name = text(in.readUnsignedShort())
      values += name -> in.readNBytes(in.readInt()).toSeq
    }
    File(head, values.result())
  }
}
