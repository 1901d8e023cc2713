package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.security.AccessControlException
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite
import redis.clients.jedis.Jedis

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.checkpoint.{FolderChecks, MarkerFile, SteppedFileSystem}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.places.{HadoopFiles, SegmentFolders}

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{
  ConfigException,
  PermissionException,
  RedisStateException,
  UnavailableException
}
import org.redisstate.core.places.FileMissing

/** Stores of the option `history=files`, on file systems of several kinds. */
class HistoryInFilesProviderSuite extends AnyFunSuite with BeforeAndAfterAll {
  import HistoryInFilesProviderSuite._

  private lazy val server = new RedisServerProcess
  private lazy val raw = new Jedis("127.0.0.1", server.port)
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  override def afterAll(): Unit = {
    raw.close()
    server.close()
  }

  private def placed(scheme: String): StateStoreId =
    StateStoreId(s"$scheme:${Files.createTempDirectory("history").resolve("state")}", 0L, 0)

  private def provider(
      id: StateStoreId,
      options: Map[String, String] = Map.empty): RedisStateStoreProvider = {
    val made = new RedisStateStoreProvider
    initialize(
      made,
      id,
      UUID.randomUUID(),
      families = false,
      options.map { case (name, value) => RedisStateConf.Prefix + name -> value },
      SteppedFileSystem.settings)
    made
  }

  /** Commits versions with maintenance in between; each of them has other rows. */
  private def run(made: RedisStateStoreProvider, from: Int, until: Int): Unit =
    (from until until).foreach { v =>
      commit(made, v.toLong, s"k${v % 7}" -> v, s"only$v" -> v)
      if (v % 3 == 2) made.doMaintenance()
    }

  private def expected(version: Int): Map[String, Int] =
    (0 until version).flatMap(v => Seq(s"k${v % 7}" -> v, s"only$v" -> v)).toMap

  private def genOf(id: StateStoreId): String =
    new MarkerFile(id.checkpointRootLocation, configuration).read().get.gen

  private def manifest(id: StateStoreId): (String, Map[String, String]) = {
    val key = raw.keys(s"{rs:${genOf(id)}:0:0:*:m").asScala.head
    key -> raw.hgetAll(key).asScala.toMap
  }

  /** Idents of segments in files. Their keys go at once, and not in a minute. */
  private def moved(id: StateStoreId): Seq[String] = {
    val (key, fields) = manifest(id)
    val idents = fields.collect { case (field, place) if place.startsWith("f ") => field.drop(2) }
    idents.foreach(ident => raw.del(key.dropRight(1) + ident))
    idents.toSeq
  }

  private def filesField(id: StateStoreId): String = raw.hget(s"{rs:${genOf(id)}}:q", "places")

  for (scheme <- SteppedFileSystem.Schemes)
    test(s"every version reads as before, and goes on from there: $scheme") {
      val id = placed(scheme)
      val made = provider(id, Moves)
      run(made, 0, 30)
      assert(moved(id).size > 10)
      val folder = new Path(id.checkpointRootLocation, "_redis_state_segments").toString
      assert(filesField(id).contains(s""""folder":"$folder""""))
      val reader = provider(id)
      (1 to 30).foreach(v => assert(read(reader, v.toLong) == expected(v), v))
      run(made, 30, 36)
      assert(read(provider(id), 36) == expected(36))
      Seq(made, reader).foreach(_.close())
    }

  test("a folder of its own is found by who does not know the option") {
    val id = placed("file")
    val folder = Files.createTempDirectory("segments")
    val made = provider(id, Moves + ("placesFolder" -> folder.toString))
    run(made, 0, 20)
    assert(moved(id).nonEmpty)
    assert(Files.list(folder).iterator.asScala.map(_.getFileName.toString).toSeq == Seq(genOf(id)))
    assert(read(provider(id), 3) == expected(3))
    made.close()
    // A folder that has none of the files is refused, by name, before anything is written.
    val other =
      provider(id, Moves + ("placesFolder" -> Files.createTempDirectory("other").toString))
    val refused = intercept[Exception](commit(other, 20, "a" -> 1))
    assert(refused.getMessage.contains("[REDIS_CONFIG]") &&
      refused.getMessage.contains(folder.toString))
    // Where the files were moved as a whole, it is another address of the same folder.
    val target = Files.createTempDirectory("target").resolve("all")
    Files.move(folder, target)
    val after = provider(id, Moves + ("placesFolder" -> target.toString))
    run(after, 20, 22)
    assert(filesField(id).contains(target.toString))
    assert(read(provider(id), 3) == expected(3))
    // Without the option nothing moves any more, and what is there is read.
    after.close()
    val before = moved(id).size
    val without = provider(id)
    run(without, 22, 40)
    assert(moved(id).size == before)
    assert(filesField(id).contains(""""history":"redis""""))
    assert(read(provider(id), 4) == expected(4))
  }

  test("a folder that cannot be written keeps the query going, with its history in Redis") {
    val id = placed("file")
    val blocked = Files.createTempFile("no-folder", "")
    val made = provider(id, Moves + ("placesFolder" -> blocked.toString))
    run(made, 0, 20)
    assert(moved(id).isEmpty)
    assert((1 to 20).forall(v => read(provider(id), v.toLong) == expected(v)))
    // Each try has a row in Redis, so that they get rarer.
    val (key, _) = manifest(id)
    assert(raw.hlen(key.dropRight(1) + "f") <= 2)
  }

  test("a history that cannot be moved does not keep a partition from its new share") {
    val id = placed("file")
    val blocked = Files.createTempFile("no-folder", "")
    val made = provider(
      id,
      Moves + ("placesFolder" -> blocked.toString) + ("redisMemory" -> "100m"))
    (0 until 12).foreach(v => commit(made, v.toLong, "a" -> v))
    made.getStore(12).abort()
    def share = manifest(id)._2("h").takeWhile(_ != ' ').toLong
    val before = share
    raw.hset(s"{rs:${genOf(id)}}:q", "op:7:default", """{"partitions":9}"""): Unit
    made.doMaintenance()
    assert(moved(id).isEmpty && share < before / 5)
    // The next try to move waits, and the share does not.
    val later = share
    raw.hset(s"{rs:${genOf(id)}}:q", "op:8:default", """{"partitions":40}"""): Unit
    made.doMaintenance()
    assert(share < later / 3)
    made.close()
  }

  test("an ephemeral checkpoint refuses the option, by name") {
    val refused = intercept[Exception](provider(placed("file"), Moves + ("ephemeral" -> "true")))
    assert(refused.getMessage.contains("[REDIS_CONFIG]") && refused.getMessage.contains("history"))
  }

  for (scheme <- SteppedFileSystem.Schemes)
    test(s"files of a folder are created, read by range, listed and deleted: $scheme") {
      val at = new Path(s"$scheme:${Files.createTempDirectory("files").resolve("a/b")}")
      val files = new HadoopFiles(at, configuration)
      assert(files.list().isEmpty)
      val sink = files.create("x/one.seg")
      sink.write(Array[Byte](1, 2, 3, 4))
      sink.write(Array[Byte](5))
      sink.close()
      assert(files.read("x/one.seg", 1, 3).toSeq == Seq[Byte](2, 3, 4))
      assert(files.read("x/one.seg", 5, 0).isEmpty)
      Seq[() => Any](
        () => files.read("x/one.seg", 3, 3),
        () => files.read("x/one.seg", 9, 1),
        () => files.read("x/two.seg", 0, 1),
        () => files.read("y/one.seg", 0, 1)
      ).foreach(read => intercept[FileMissing](read()))
      assert(files.list().contains(Seq("x")) && files.list("x").contains(Seq("one.seg")))
      assert(files.list("y").isEmpty)
      assert(intercept[Exception](files.create("x/one.seg").close()).isInstanceOf[
        UnavailableException])
      assert(files.read("x/one.seg", 0, 1).toSeq == Seq[Byte](1))
      (1 to 2).foreach(_ => files.delete("x/one.seg"))
      intercept[FileMissing](files.read("x/one.seg", 0, 1)): Unit
      files.create("x/gone.seg").abandon()
    }

  for (scheme <- Seq("file", "names"))
    test(s"a file that may not be read is PERMISSION: $scheme") {
      val folder = Files.createTempDirectory("files")
      // Root may read every file. Java reports a folder as it reports a file without the right.
      Files.createDirectory(folder.resolve("one.seg")): Unit
      SteppedFileSystem.step = step =>
        if (step == "open one.seg") throw new AccessControlException("denied")
      val files = new HadoopFiles(new Path(s"$scheme:$folder"), configuration)
      val refused =
        try intercept[PermissionException](files.read("one.seg", 0, 1))
        finally SteppedFileSystem.step = _ => ()
      assert(refused.getMessage.contains(folder.toString))
    }

  for (scheme <- Seq("file", "names"))
    test(s"a file that is still there after its deletion is an error: $scheme") {
      val files = new HadoopFiles(new Path(s"$scheme:/proc/self"), configuration)
      val failed = intercept[RedisStateException](files.delete("stat"))
      assert(failed.getMessage.contains("delete stat"))
    }

  test("files are deleted only beside the marker and the log of their checkpoint") {
    val id = placed("file")
    val made = provider(id, Moves)
    run(made, 0, 3)
    val root = java.nio.file.Path.of(new Path(id.checkpointRootLocation).toUri.getPath)
    val (gen, field) = (genOf(id), filesField(id))
    def folders(of: String, option: Option[String]) =
      new SegmentFolders(of, configuration, gen, option, _ => Some(field))
    def checks(gen: String) = new FolderChecks(
      id.checkpointRootLocation,
      configuration,
      gen,
      folders(id.checkpointRootLocation, None))
    // A copy of the checkpoint with the same settings has a folder of its own only by default.
    assert(checks(gen).ownsFolder)
    val copied = placed("file").checkpointRootLocation
    assert(folders(copied, None).isInCheckpoint)
    Seq(s"${id.checkpointRootLocation}/_redis_state_segments", "file:/shared/places").foreach(
      shared => assert(!folders(copied, Some(shared)).isInCheckpoint))
    assert(checks("f" * 32).newestBatch().left.exists(_.contains(genOf(id))))
    assert(checks(genOf(id)).newestBatch().left.exists(_.contains("commit log")))
    val commits = Files.createDirectories(root.resolveSibling("commits"))
    Seq("0", "2", "1", ".2.crc").foreach(name => Files.writeString(commits.resolve(name), ""))
    assert(checks(genOf(id)).newestBatch() == Right(2))
    val copy = Files.createDirectories(root.resolve("_redis_state_copies/3-" + "a" * 32))
    val files = Seq("0-0-x/1-2-y.seg", "0-0-x/1-2-z.seg")
    assert(checks(genOf(id)).copied(files).isEmpty)
    Files.writeString(copy.resolve("manifest"), "hash\n{\"files\": [\"0-0-x/1-2-y.seg\"]}")
    assert(checks(genOf(id)).copied(files) == Set(files.head))
    Using.resource(Files.list(root))(_.iterator.asScala.toSeq.foreach { file =>
      if (file.getFileName.toString.startsWith("_redis_state") && Files.isRegularFile(file))
        Files.delete(file)
    })
    assert(checks("f" * 32).newestBatch().left.exists(_.contains("no marker")))
  }

  test("what was brought back stays in Redis until a start with the option") {
    val id = placed("file")
    val made = provider(id, Moves)
    run(made, 0, 12)
    val before = moved(id).size
    assert(before > 0)
    // What `redis-state places --bring-back` records.
    val key = s"{rs:${genOf(id)}}:q"
    raw.hset(
      key,
      "places",
      filesField(id).replace(""""history":"files"""", """"history":"redis"""")): Unit
    run(made, 12, 30)
    assert(moved(id).size <= before)
    made.close()
    val again = provider(id, Moves)
    run(again, 30, 45)
    assert(filesField(id).contains(""""history":"files""""))
    assert(moved(id).size > before)
    again.close()
  }

  test("a folder without the files is refused where the former does not answer, or is a default") {
    val id = placed("file")
    val former = Files.createTempDirectory("former").resolve("all")
    val made = provider(id, Moves + ("placesFolder" -> former.toString))
    run(made, 0, 12)
    made.close()
    val away = former.resolveSibling("away")
    Files.move(former, away)
    def refused(options: Map[String, String]) = {
      val started = provider(id, options)
      val found = intercept[Exception](commit(started, 12, "a" -> 1))
      started.close()
      assert(found.getMessage.contains("[REDIS_CONFIG]"))
      found.getMessage
    }
    assert(refused(Moves).contains(former.toString))
    val default = s"file:${Files.createTempDirectory("other")}/state/_redis_state_segments"
    val key = s"{rs:${genOf(id)}}:q"
    raw.hset(key, "places", s"""{"folder":"$default","grace":86400000,"history":"files"}""")
    assert(refused(Moves).contains(default))
    val again = provider(id, Moves + ("placesFolder" -> away.toString))
    run(again, 12, 14)
    assert(read(provider(id), 3) == expected(3))
    again.close()
  }

  test("files that moved with their checkpoint are recorded there, and its forks find them") {
    val id = placed("file")
    val made = provider(id, Moves)
    run(made, 0, 12)
    assert(moved(id).nonEmpty)
    made.close()
    val (gen, former) = (genOf(id), filesField(id))
    val fork = new SegmentFolders(
      placed("file").checkpointRootLocation,
      configuration,
      "f" * 32,
      None,
      of => Option(raw.hget(s"{rs:$of}:q", "places")))
    val before = fork.of(gen).folder
    assert(!fork.lookAgain(gen))
    val root = java.nio.file.Path.of(new Path(id.checkpointRootLocation).toUri.getPath)
    val target = Files.createTempDirectory("moved").resolve("state")
    Files.move(root, target)
    val there = StateStoreId(s"file:$target", 0L, 0)
    val adopts = Map("onPathChange" -> "adopt")
    val adopted = provider(there, adopts)
    run(adopted, 12, 14)
    val address = s"file:$target/_redis_state_segments"
    assert(filesField(there).contains(s""""folder":"$address"""") && filesField(there) != former)
    assert(read(provider(there, adopts), 3) == expected(3))
    assert(fork.lookAgain(gen) && fork.of(gen).folder == s"$address/$gen")
    assert(fork.of(gen).folder != before)
    adopted.close()
  }

  test("an address with a password is refused, and the password is not quoted") {
    val url = RedisStateConf.Prefix + "url" -> server.url
    def conf(address: String) =
      RedisStateConf(Map(url, RedisStateConf.Prefix + "placesFolder" -> address), 2)
    Seq("s3a://key:geheim@bucket/a", "s3a://key:ge/heim@bucket/a", "ftp://u%3Ageheim@h/a").foreach {
      address =>
        val refused = intercept[ConfigException](conf(address)).getMessage
        assert(refused.contains("placesFolder") && !refused.contains("heim"))
    }
    Seq(
      "abfss://container@account.dfs.core.windows.net/a",
      "hdfs://name:8020/user/me@corp/a",
      "hdfs://name:8020/a:b@c",
      "/a:b@c",
      "file:/a").foreach(address => assert(conf(address).placesFolder.contains(address)))
  }

  test("the option of a refused value names what is accepted") {
    val url = RedisStateConf.Prefix + "url" -> server.url
    val wrong = RedisStateConf.Prefix + "history" -> "disk"
    val refused = intercept[ConfigException](RedisStateConf(Map(url, wrong), 2))
    assert(refused.getMessage.contains("redis, files"))
  }
}

private object HistoryInFilesProviderSuite {
  val Moves: Map[String, String] = Map("history" -> "files")

  def configuration: Configuration = {
    val conf = new Configuration
    SteppedFileSystem.settings.foreach { case (name, value) => conf.set(name, value) }
    conf
  }
}
