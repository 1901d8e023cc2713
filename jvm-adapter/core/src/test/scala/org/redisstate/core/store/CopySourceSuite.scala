package org.redisstate.core.store

import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.copy._
import org.redisstate.core.errors.{FencedException, StateLostException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, Place, Segment}
import org.redisstate.core.ids.Keys
import org.redisstate.core.places.PlayedFiles

/** Copies that the driver makes of a partition, and reasons to make no copy. */
class CopySourceSuite extends AnyFunSuite {
  import CopySourceSuite._
  import TestPartition._

  private val signer = Some(new BlockSigner(Array.fill(32)(7.toByte)))
  private val listed = Seq(CopiedStore(0, "default", 1))

  test("each segment is written once, as it is stored, signatures included") {
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
      val files = new PlayedFiles
      val first = copier(partition, files, signer)
      val part = first.source.parts(listed, "a", 5).head
      val copied = first.files.write(part)
      assert(copied.map(_.field.take(4)) == Seq("d:5:", "d:4:", "s:3:"))
      assert(files.all.size == 1 && files.all.forall(Place.isCopyName))
      assert(first.files.written.values.map(_.text).toSet == copied.flatMap(_.place).map(
        _.text).toSet)
      commit(store, 5)
      store.open(6)
      val second = copier(partition, files, signer, first.files.written)
      val later = second.files.write(second.source.parts(listed, "a", 6).head)
      assert(later.tail == copied)
      assert(files.all.size == 2 && second.files.written.size == 1)
      assert(second.files.write(second.source.parts(listed, "a", 6).head) == later)
      assert(files.all.size == 2)
      val blocks = stored(partition, part.segments.last).map(_._2.toArray)
      val bytes = files.bytes(files.all.head)
      assert(blocks.nonEmpty && blocks.forall(block => bytes.indexOfSlice(block) >= 0))
    }
  }

  test("a file that the file system cut is found before a copy names it") {
    onServer { partition =>
      commit(partition.store("a"), 0)
      commit(partition.store("a"), 1)
      val files = new PlayedFiles
      files.cutBytes = 1
      val one = copier(partition, files, None)
      val part = one.source.parts(listed, "a", 1).head
      val e = intercept[UnavailableException](one.files.write(part))
      assert(e.getMessage.contains("is not as it was written"))
      assert(one.files.written.isEmpty)
    }
  }

  test("a file that no copy names is deleted, unless a restored partition reads from it") {
    onServer { partition =>
      commit(partition.store("a"), 0)
      commit(partition.store("a"), 1)
      val files = new PlayedFiles
      val one = copier(partition, files, None)
      val copied = one.files.write(one.source.parts(listed, "a", 1).head)
      val file = CopyFile(partition.id.gen, files.all.head)
      val unneeded = new UnneededFiles(partition.backend, "", _ => files, graceMs = 3600000)
      def stays(): Unit = {
        assert(unneeded.delete(Seq(file)).isEmpty && files.all.nonEmpty)
        ()
      }
      val list = Keys.files(partition.id)
      val place = s"a:${copied.head.field}"
      partition.raw.hset(Keys.meta(partition.id), place, copied.head.place.get.text)
      stays()
      partition.raw.hset(list, file.name, "d 1 0 10")
      stays()
      partition.raw.hdel(Keys.meta(partition.id), place)
      partition.raw.hset(list, file.name, "u 1 1 10")
      stays()
      partition.raw.hset(list, file.name, s"d ${System.currentTimeMillis()} 0 10")
      stays()
      partition.raw.hset(list, file.name, "d 1 0 10")
      assert(unneeded.delete(Seq(file)) == Seq(file))
      assert(files.all.isEmpty && !partition.raw.exists(list))
      files.put(file.name, Array(1))
      assert(unneeded.delete(Seq(file)) == Seq(file))
      assert(files.all.isEmpty)
      val others = Seq(
        file.copy(gen = "../../other"),
        file.copy(name = file.name.replace(".copy", ".seg")),
        file.copy(name = s"../${file.name}"))
      others.foreach(other => files.put(other.name, Array(1)))
      assert(unneeded.delete(others).isEmpty && files.all.size == others.size)
    }
  }

  test("a file that cannot be deleted stays, and others go") {
    onServer { partition =>
      commit(partition.store("a"), 0)
      commit(partition.store("a"), 1)
      val files = new PlayedFiles
      val one = copier(partition, files, None)
      one.files.write(one.source.parts(listed, "a", 1).head): Unit
      val written = files.all.head
      val names = (0 to 30).map(n => written.replaceAll("[0-9a-f]{32}\\.", f"$n%032x."))
      names.foreach(files.put(_, Array(1)))
      val unneeded = new UnneededFiles(partition.backend, "", _ => files, graceMs = 3600000)
      var tries = 0
      files.before = _ => {
        tries += 1
        if (tries == 1) throw new UnavailableException("it is locked")
      }
      val all = names.map(CopyFile(partition.id.gen, _))
      assert(unneeded.delete(all) == all.tail)
      assert(files.all.toSet == Set(written, names.head))
      tries = 0
      files.answers = false
      files.before = _ => tries += 1
      assert(unneeded.delete(all).isEmpty && tries == 8)
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
            val files = new PlayedFiles
            val one = copier(to, files, signed)
            val part = one.source.parts(listed, fork.run, version).head
            assert(part.segments.map(_.gen) == Seq("", from.id.gen, from.id.gen))
            val copied = one.files.write(part)
            assert(copied.forall(_.place.nonEmpty))
            val restored = new TestPartition(
              anew,
              gen = to.id.gen,
              number = 0,
              folders = Some(files))
            try {
              restore(restored, part, copied)
              fork.checkAt(restored, version)
            } finally restored.close()
          } finally to.close()
        }
      }
    }

  /** Does what `redis-state restore` does with a copy that it has checked. */
  private def restore(p: TestPartition, part: CopyPart, segments: Seq[CopiedSegment]): Unit = {
    val triples = segments.flatMap(s => Seq(s.field, s.entry, s.place.fold("")(_.text)))
    val oldest = part.segments.last.version.toString
    val head = Seq(part.pin.version.toString, part.pin.uid, oldest, "100", "1")
    assert(ForkedPartitions.script(p.backend, "restore", p.id, head ++ triples: _*) == Seq("OK"))
    assert(p.meta("f") == "2")
    ()
  }

  private def copier(
      p: TestPartition,
      files: PlayedFiles,
      signer: Option[BlockSigner],
      known: Map[CopiedName, Place.InFile] = Map.empty): Copier = {
    val source = p.copySource(signer)
    Copier(source, new CopyFiles(source, files, signer, known.get, _ => ()))
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
}

private object CopySourceSuite {
  final case class Copier(source: CopySource, files: CopyFiles)
}
