package org.apache.spark.sql.redisstate.copies

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path => JPath}
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.ProviderHarness
import org.apache.spark.sql.redisstate.checkpoint.{CopyNames, MarkerFile}
import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.copy.{CopiedSegment, CopyFile, CopyPart}
import org.redisstate.core.errors.{RedisStateException, UnavailableException}
import org.redisstate.core.format.Place
import org.redisstate.core.ids.{PartitionId, Pin}

/** Files that the copies of a query share, and the ones that no copy names any more. */
class SharedCopiesSuite extends AnyFunSuite {
  import SharedCopiesSuite._

  test("a copy writes what is new since the last one") {
    query { q =>
      q.commit(20)
      q.copier.copy(10)
      val first = q.files
      assert(first.size == 1 && q.manifests.map(_.version) == Seq(10))
      q.commit(5)
      q.copier.copy(20)
      val both = q.files
      assert(both.size == 2 && first.keySet.subsetOf(both.keySet))
      assert((both -- first.keys).values.sum < 2 * first.values.sum)
      q.copier.copy(20)
      assert(q.files == both && q.manifests.map(_.version).sorted == Seq(10, 20))
      assert(q.manifests.maxBy(_.version).files.size == 2)
    }
  }

  test("a file is deleted an hour after the last copy that names it is gone") {
    query { q =>
      q.commit(6)
      q.copier.copy(5)
      val first = q.files.keySet
      // Of a driver that was killed before it wrote a manifest, and of nobody.
      val killed = q.plant(first.head.replaceAll("[0-9a-f]{32}\\.copy", "0" * 32 + ".copy"))
      val moved = q.plant(first.head.replaceAll("[0-9a-f]{32}\\.copy", "0" * 32 + ".seg"))
      q.commit(1)
      q.snapshot()
      Seq(7L, 8L, 9L).foreach { version =>
        q.commit(1)
        q.copier.copy(version)
      }
      assert(q.manifests.forall(copy => copy.files.map(_.name).intersect(first).isEmpty))
      assert(first.subsetOf(q.files.keySet), "for an hour another driver may name it")
      q.now += CopyMaker.GraceMs
      q.commit(1)
      q.restarted().copy(10)
      assert(q.files.contains(killed), "it is known since then")
      assert(q.files.keySet.intersect(first).isEmpty)
      q.now += CopyMaker.GraceMs
      q.commit(1)
      q.copier.copy(11)
      assert(!q.files.contains(killed) && q.files.contains(moved))
      assert(q.manifests.flatMap(_.files).map(_.name).toSet.subsetOf(q.files.keySet))
    }
  }

  test("a file stays for an hour after a driver that slept removed the last copy that names it") {
    query { q =>
      q.commit(6)
      q.copier.copy(5)
      val first = q.files.keySet
      q.commit(1)
      q.snapshot()
      q.commit(1)
      q.copier.copy(7)
      q.commit(1)
      val begun = q.now
      val asleep = () => begun + (if (q.manifests.exists(_.version == 8)) CopyMaker.GraceMs else 0)
      val slow = q.restarted(asleep)
      slow.copy(8)
      assert(first.subsetOf(q.files.keySet))
      q.commit(1)
      slow.copy(9)
      assert(q.manifests.map(_.version).toSet == Set(8L, 9L))
      assert(first.subsetOf(q.files.keySet), "copy 5 was there a moment ago")
      q.now += 2 * CopyMaker.GraceMs
      q.commit(1)
      q.restarted().copy(10)
      assert(q.files.keySet.intersect(first).isEmpty)
    }
  }

  test("a file stays for an hour after each of the two newest copies has listed it") {
    query { q =>
      q.commit(6)
      q.copier.copy(5)
      val first = q.files.keySet
      q.commit(1)
      q.snapshot()
      Seq(7L, 8L, 9L).foreach { version =>
        q.commit(1)
        q.copier.copy(version)
      }
      q.commit(2)
      q.now += CopyMaker.GraceMs
      val copies = new StateCopies(new Path(q.checkpoint.toUri), new Configuration)
      val offsets = copies.offsetsOf(9).get
      val head = CopyHead(q.gen, 10, "run", 0, offsets, Map.empty, "file:/x", ownFolder = None)
      val listed = first.map(name => CopyFile(q.gen, name) -> (q.now - 1)).toMap
      var isPlanted = false
      // Another driver's copy, which copy 11 has not seen.
      val last = q.restarted(() => {
        if (!isPlanted && q.manifests.exists(_.version == 11)) {
          isPlanted = true
          copies.write(head, Nil, Set.empty, _ => listed, () => true): Unit
        }
        q.now
      })
      last.copy(11)
      assert(q.manifests.map(_.version).toSet == Set(10L, 11L))
      assert(first.subsetOf(q.files.keySet))
      q.now += CopyMaker.GraceMs
      q.commit(1)
      q.restarted().copy(12)
      assert(q.files.keySet.intersect(first).isEmpty)
    }
  }

  test("a copy that took long does not name a file of its own that another driver has listed") {
    query { q =>
      q.commit(8)
      val other = q.restarted()
      val slow = q.restarted(() => {
        if (q.files.nonEmpty && q.manifests.isEmpty) {
          other.copy(6)
          q.now += CopyMaker.GraceMs * 2 / 3
        }
        q.now
      })
      val late = intercept[UnavailableException](slow.copy(5))
      assert(late.getMessage.contains("was written long ago"))
      val old = q.files.keySet -- q.manifests.flatMap(_.files).map(_.name)
      assert(old.size == 1 && q.manifests.map(_.version) == Seq(6))
      slow.copy(7)
      val newest = q.manifests.maxBy(_.version)
      assert(newest.version == 7 && newest.files.map(_.name).intersect(old).isEmpty)
    }
  }

  test("a copy that is none of the two newest removes no other") {
    query { q =>
      q.commit(10)
      q.copier.copy(7)
      q.copier.copy(8)
      q.restarted().copy(5)
      assert(q.manifests.map(_.version).toSet == Set(5L, 7L, 8L))
      q.copier.copy(9)
      assert(q.manifests.map(_.version).toSet == Set(8L, 9L))
    }
  }

  for (isSummed <- Seq(true, false))
    test(
      s"a damaged manifest gives no place to the next copy: ${if (isSummed) "with" else "without"} .crc") {
      query { q =>
        q.commit(4)
        q.copier.copy(2)
        val before = q.manifests.flatMap(_.files).map(_.name).toSet
        val manifest = q.manifestOf(2)
        val text = Files.readString(manifest)
        Files.writeString(manifest, text.replaceFirst("\\.copy 0 ", ".copy 1 "))
        if (!isSummed) Files.delete(manifest.resolveSibling(".manifest.crc"))
        q.restarted().copy(3)
        assert(q.manifests.map(_.version) == Seq(3))
        assert(q.manifests.flatMap(_.files).map(_.name).toSet.intersect(before).isEmpty)
      }
    }

  test("a copy that failed leaves its files to the next one, and a lost file is written again") {
    query { q =>
      q.commit(4)
      val copies = q.checkpoint.resolve(s"state/${CopyNames.Folder}")
      Files.writeString(copies, "where copies would go")
      intercept[Exception](q.copier.copy(2)): Unit
      Files.delete(copies)
      val written = q.files
      q.copier.copy(2)
      assert(q.files.keySet == written.keySet || written.isEmpty)
      q.files.keys.foreach(name => Files.delete(q.folder.resolve(name)))
      q.restarted().copy(3)
      assert(q.files.nonEmpty)
      val newest = q.manifests.maxBy(_.version)
      assert(newest.files.map(_.name).subsetOf(q.files.keySet))
    }
  }

  test("a copy does not name what was in a copy that another driver removed") {
    query { q =>
      q.commit(4)
      q.copier.copy(2)
      val copies = new StateCopies(new Path(q.checkpoint.toUri), new Configuration)
      val parts = Nil
      val gone = CopyFile(q.gen, s"0-0-${"0" * 16}/1-1-${"0" * 32}.copy")
      val head = CopyHead(q.gen, 3, "run", 0, "offsets", Map.empty, "file:/x", ownFolder = None)
      copies.write(head, parts, Set.empty, _ => Map(gone -> 7L), () => true)
      assert(q.manifests.find(_.version == 3).exists(_.unneeded == Map(gone -> 7L)))
      val segment =
        CopiedSegment("d:1:u", "- 1 1 1 1 1 1 -", Some(Place.InFile(gone.name, 0, 100, 50)))
      val part =
        CopyPart(PartitionId("", q.gen, 0, 0, "default"), Pin(1, "u"), Nil, "1", "2")
      val e = intercept[RedisStateException](
        copies.write(
          head.copy(version = 4),
          Seq(part -> Seq(segment)),
          Set.empty,
          _ => Map.empty,
          () => true))
      assert(e.getMessage.contains("was in a copy that is gone"))
      assert(!q.manifests.exists(_.version == 4))
    }
  }

  test("a copy whose batch leaves the log meanwhile is not made, and leaves its files") {
    query { q =>
      q.commit(4)
      val entry = q.checkpoint.resolve("offsets/1")
      val slow = q.restarted(() => { Files.deleteIfExists(entry): Unit; q.now })
      val e = intercept[RedisStateException](slow.copy(2))
      assert(e.getMessage.contains("minBatchesToRetain"))
      val written = q.files
      assert(q.manifests.isEmpty && written.nonEmpty)
      q.commit(1)
      slow.copy(3)
      assert(q.manifests.map(_.version) == Seq(3) && written.keySet.subsetOf(q.files.keySet))
    }
  }

  test("a copy names the folder outside of the checkpoint that its query has") {
    query { q =>
      q.commit(2)
      q.copier.copy(1)
      assert(!Files.readString(q.manifestOf(1)).contains("own_folder"))
      val outside = Files.createTempDirectory("outside")
      q.commit(1)
      q.restarted(more = Map("placesFolder" -> outside.toString)).copy(2)
      val manifest = Files.readString(q.manifestOf(2))
      assert(manifest.contains(s""""outside":true,"own_folder":"file:$outside""""))
      Files.delete(outside)
    }
  }

  test("a copy that failed after a sleep stays, since another may name what it names") {
    query { q =>
      q.commit(4)
      val copies = new StateCopies(new Path(q.checkpoint.toUri), new Configuration)
      val head = CopyHead(q.gen, 3, "run", 0, "offsets", Map.empty, "file:/x", ownFolder = None)
      for (mayRemove <- Seq(true, false)) {
        intercept[IllegalStateException](copies.write(
          head,
          Nil,
          Set.empty,
          _ => throw new IllegalStateException("no answer"),
          () => mayRemove)): Unit
        val folder = q.checkpoint.resolve(s"state/${CopyNames.Folder}")
        assert(Using.resource(Files.list(folder))(_.count()) == (if (mayRemove) 0 else 1))
      }
    }
  }

  private def query(use: Query => Unit): Unit =
    Using.resource(new RedisServerProcess)(server => use(new Query(server)))
}

private object SharedCopiesSuite {

  /** A query of one partition, and its driver. */
  final class Query(server: RedisServerProcess) {
    val checkpoint: JPath = Files.createTempDirectory("shared")
    @volatile var now: Long = System.currentTimeMillis()
    private val harness = new ProviderHarness(server.url)
    private val run = UUID.randomUUID()
    private val id = StateStoreId(checkpoint.resolve("state").toString, 0L, 0)
    private val provider = harness.provider(id, run)
    private var version = 0L
    lazy val gen: String =
      new MarkerFile(id.checkpointRootLocation, new Configuration).read().get.gen
    private lazy val first = restarted()
    def copier: StateCopier = first
    def folder: JPath = checkpoint.resolve(s"state/_redis_state_segments/$gen")

    /** A driver that knows nothing of the copies before. */
    def restarted(
        nowMs: () => Long = () => now,
        more: Map[String, String] = Map.empty): StateCopier = {
      val options = more ++
        Map("url" -> server.url, "deadline" -> "10s", "copyEveryBatches" -> "1")
      val conf = RedisStateConf(options.map { case (k, v) => RedisStateConf.Prefix + k -> v }, 100)
      new StateCopier(run, gen, new Path(checkpoint.toUri), new Configuration, conf, nowMs)
    }

    def commit(times: Int): Unit =
      (1 to times).foreach(_ => write((0 to 50).map(i => s"k$i" -> (version * 100 + i).toInt)))

    /** Commits so many rows, spread over all keys. */
    def put(rows: Int, keys: Int): Unit = {
      val step = math.max(1, keys / rows)
      write((0 until rows).map(i =>
        f"key-${(i * step + version.toInt) % keys}%09d" -> (i + version.toInt)))
    }

    private def write(rows: Seq[(String, Int)]): Unit = {
      Files.createDirectories(checkpoint.resolve("offsets"))
      Files.writeString(checkpoint.resolve(s"offsets/$version"), s"v1 $version")
      version = harness.commit(provider, version, rows: _*)
    }

    /** The newest version that can be copied. */
    def opened: Long = version - 1

    def snapshot(): Unit = provider.doMaintenance()

    /** Lengths of the files, by name. */
    def files: Map[String, Long] =
      if (!Files.exists(folder)) Map.empty
      else
        Using.resource(Files.walk(folder))(_.iterator.asScala.filter(Files.isRegularFile(_))
          .filterNot(_.getFileName.toString.startsWith(".")).map(file =>
            folder.relativize(file).toString -> Files.size(file)).toMap)

    def plant(name: String): String = {
      Files.write(folder.resolve(name), "x".getBytes(UTF_8))
      name
    }

    def manifestOf(version: Long): JPath = {
      val copies = checkpoint.resolve(s"state/${CopyNames.Folder}")
      Using.resource(Files.newDirectoryStream(copies, s"$version-*"))(
        _.iterator.next().resolve(CopyNames.Manifest))
    }

    def manifests: Seq[CopyManifest] =
      new StateCopies(new Path(checkpoint.toUri), new Configuration).manifests()
  }
}
