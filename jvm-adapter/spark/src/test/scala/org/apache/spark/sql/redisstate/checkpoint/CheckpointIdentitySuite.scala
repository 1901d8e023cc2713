package org.apache.spark.sql.redisstate.checkpoint

import java.nio.file.{Files, Path => LocalPath}
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success}

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.backend.Clock
import org.redisstate.core.errors._
import org.redisstate.core.protocol.RunRegistry
import org.redisstate.core.protocol.names.GenClaims

/** One gen a checkpoint, on file systems of every kind, whoever decides and whoever sleeps meanwhile. */
class CheckpointIdentitySuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val backend = TestConnection.backend(server.url)
  private val schedules = if (sys.env.contains("REDIS_STATE_LONG")) 3000 else 30

  override def afterAll(): Unit = {
    backend.close()
    server.close()
  }

  private def gen(): String = CheckpointIdentity.genOf(UUID.randomUUID().toString)

  /** A checkpoint's state folder that is not there yet. */
  private def folder(): LocalPath =
    Files.createTempDirectory("identity").resolve("state")

  /** Goes on by what is slept, and gives the turn away. */
  private final class TestClock(onSleep: () => Unit = () => ()) extends Clock {
    private var time = 0L
    override def nowMs: Long = time
    override def sleep(ms: Long): Unit = {
      time += ms
      onSleep()
    }
  }

  private def markerFile(
      state: LocalPath,
      scheme: String = "file",
      clock: Clock = new TestClock): MarkerFile =
    new MarkerFile(s"$scheme:$state", SteppedFileSystem.conf, clock)

  private def identity(file: MarkerFile): CheckpointIdentity =
    new CheckpointIdentity(file, new GenClaims(backend, ""))

  private def namesIn(state: LocalPath): Seq[String] = {
    val listing = Files.list(state)
    try listing.iterator.asScala.map(_.getFileName.toString).toSeq.sorted
    finally listing.close()
  }

  private def register(gen: String): Unit = {
    val registry = new RunRegistry(backend, "", gen)
    registry.register(UUID.randomUUID().toString, true, 0, Map.empty)
    registry.noteMarker()
  }

  private class SteppedClaims(turns: Turns) extends GenClaims(backend, "") {
    override def look(pathHash: String): Option[String] = {
      turns.step()
      super.look(pathHash)
    }
    override def take(pathHash: String, gen: String): Option[String] = {
      turns.step()
      super.take(pathHash, gen)
    }
    override def drop(pathHash: String, gen: String): Unit = {
      turns.step()
      super.drop(pathHash, gen)
    }
    override def isUsed(gen: String): Boolean = {
      turns.step()
      super.isUsed(gen)
    }
  }

  /** Steps of a run before its first write; returns the gen that the run writes under. */
  private type Writer = (MarkerFile, GenClaims, String) => String

  private val task: Writer = (file, claims, mine) => {
    val found = file.open(0, adoptMoved = false)
    val identity = new CheckpointIdentity(file, claims)
    val opened = found.fold(identity.proposed(mine))(_.gen)
    identity.confirm(opened, Option.when(found.isEmpty)(mine), adoptMoved = false)
    opened
  }

  private val driver: Writer = (file, claims, mine) =>
    new CheckpointIdentity(file, claims)
      .begin(mine, version = 0, stateful = true, adoptMoved = false).get

  /** Runs three runs that begin at once; returns the fault, if there is one. */
  private def schedule(
      seed: Int,
      scheme: String,
      writers: Seq[Writer],
      claimsOf: Turns => GenClaims): Option[String] = {
    val turns = new Turns(seed.toLong)
    val state = folder()
    SteppedFileSystem.step = _ => turns.step()
    val results =
      try {
        writers.foreach { writer =>
          turns.add(writer(
            markerFile(state, scheme, new TestClock(() => turns.step())),
            claimsOf(turns),
            gen()))
        }
        turns.play()
      } finally SteppedFileSystem.step = _ => ()
    val decided = markerFile(state, scheme).read().get.gen
    results.collectFirst {
      case Failure(e) if !e.isInstanceOf[FencedException] => e.toString
      case Success(other) if other != decided => s"$other writes, the marker has $decided"
    }.orElse(
      if (namesIn(state) == Seq(MarkerFile.Name)) None else Some(namesIn(state).mkString(" ")))
  }

  private def wrong(
      scheme: String,
      writers: Seq[Writer],
      claimsOf: Turns => GenClaims = new SteppedClaims(_)): Option[String] =
    (1 to schedules).iterator.map(schedule(_, scheme, writers, claimsOf)).collectFirst {
      case Some(found) => found
    }

  for (scheme <- SteppedFileSystem.Schemes)
    test(s"runs that begin at once write under one gen: $scheme") {
      assert(wrong(scheme, Seq(task, task, driver)) == None)
      assert(wrong(scheme, Seq(task, task, task)) == None)
    }

  test("the schedules find a claim that everybody gets") {
    val everybody = (turns: Turns) =>
      new SteppedClaims(turns) {
        override def take(pathHash: String, gen: String): Option[String] = Some(gen)
      }
    for (scheme <- Seq("loose", "s3a"))
      assert(wrong(scheme, Seq(task, task, driver), everybody).exists(_.contains("writes")))
    // Where the file is made only if it is absent, it decides alone.
    for (scheme <- Seq("names", "s3", "file"))
      assert(wrong(scheme, Seq(task, task, task), everybody) == None)
  }

  test("the schedules find a writer that does not compare") {
    val blind: Writer = (file, claims, mine) => {
      val opened = file.open(0, adoptMoved = false).fold(mine)(_.gen)
      if (file.read().isEmpty) new CheckpointIdentity(file, claims).settle(opened)
      opened
    }
    for (scheme <- SteppedFileSystem.Schemes)
      assert(wrong(scheme, Seq(blind, task, driver)).exists(_.contains("writes")))
  }

  test("the schedules find a file that is not looked for behind the claim") {
    val hasty: Writer = (file, claims, mine) => {
      val found = file.open(0, adoptMoved = false)
      val opened = found.fold(mine)(_.gen)
      if (found.isEmpty) {
        val decided = claims.take(file.pathHash, opened).getOrElse(opened)
        file.create(Marker(decided, file.pathHash))
        claims.drop(file.pathHash, decided)
        if (decided != opened) throw new FencedException("another one's")
      }
      opened
    }
    assert(wrong("loose", Seq(hasty, hasty, driver)).exists(_.contains("writes")))
  }

  test("what a run claimed that died goes to the next one") {
    val (dead, next) = (gen(), gen())
    val file = markerFile(folder())
    val claims = new GenClaims(backend, "")
    assert(claims.take(file.pathHash, dead).contains(dead))
    assert(identity(file).settle(next).gen == dead)
    // Nothing is left of it.
    assert(claims.take(file.pathHash, next).contains(next))
  }

  test("a claim does not bring the state of a deleted checkpoint back") {
    val (old, next) = (gen(), gen())
    val file = markerFile(folder())
    register(old)
    assert(new GenClaims(backend, "").take(file.pathHash, old).contains(old))
    assert(identity(file).settle(next).gen == next)
  }

  test("a run whose folder was deleted does not make its marker anew") {
    val mine = gen()
    val state = folder()
    register(mine)
    intercept[MarkerMissingException](identity(markerFile(state)).settle(mine))
    assert(!Files.exists(state))
    intercept[MarkerMissingException](
      identity(markerFile(state)).confirm(mine, None, adoptMoved = false))
    assert(!Files.exists(state))
  }

  test("a writer that opened as another gen is told both") {
    val (first, second) = (gen(), gen())
    val file = markerFile(folder())
    identity(file).confirm(first, Some(first), adoptMoved = false)
    val e = intercept[FencedException](
      identity(file).confirm(second, Some(second), adoptMoved = false))
    assert(e.getMessage.contains(first) && e.getMessage.contains(second))
  }

  test("a task that looked before the marker was made opens the gen that it has by then") {
    val state = folder()
    val (earlier, next) = (gen(), gen())
    assert(markerFile(state).open(0, adoptMoved = false).isEmpty)
    identity(markerFile(state)).settle(earlier)
    val file = markerFile(state)
    val opened = identity(file).proposed(next)
    assert(opened == earlier)
    identity(file).confirm(opened, Some(next), adoptMoved = false)
  }

  test("a marker is read by opening it, and never written again") {
    val state = folder()
    val file = markerFile(state, "names")
    val mine = gen()
    identity(file).settle(mine)
    val key = Files.readAttributes(
      state.resolve(MarkerFile.Name),
      classOf[java.nio.file.attribute.BasicFileAttributes]).fileKey
    var steps = Seq.empty[String]
    SteppedFileSystem.step = name => steps :+= name
    try {
      assert(file.read().map(_.gen).contains(mine))
      assert(identity(file).settle(gen()).gen == mine)
      file.create(Marker(gen(), file.pathHash))
    } finally SteppedFileSystem.step = _ => ()
    assert(steps.forall(_.matches("(open _redis_state(\\.1)?)|((create|delete) \\..*\\.tmp)")))
    assert(steps.take(2) == Seq("open _redis_state", "open _redis_state.1"))
    assert(file.read().map(_.gen).contains(mine) && namesIn(state) == Seq(MarkerFile.Name))
    assert(Files.readAttributes(
      state.resolve(MarkerFile.Name),
      classOf[java.nio.file.attribute.BasicFileAttributes]).fileKey == key)
  }

  test("a marker that is missing or cut for a moment is looked for again") {
    val state = folder()
    val mine = gen()
    identity(markerFile(state)).settle(mine)
    val path = state.resolve(MarkerFile.Name)
    val bytes = Files.readAllBytes(path)
    for (meanwhile <- Seq(None, Some(Array.empty[Byte]), Some(bytes.take(20)))) {
      Files.delete(path)
      meanwhile.foreach(Files.write(path, _))
      var pauses = 0
      val clock = new TestClock(() => {
        pauses += 1
        if (pauses == 5) Files.write(path, bytes): Unit
      })
      assert(markerFile(state, clock = clock).open(1, adoptMoved = false).map(_.gen).contains(mine))
      assert(pauses == 5)
    }
  }

  test("a marker that stays away or broken is named after some seconds") {
    val state = folder()
    Files.createDirectories(state)
    val clock = new TestClock
    intercept[MarkerMissingException](markerFile(state, clock = clock).open(1, adoptMoved = false))
    assert(clock.nowMs >= 3000 && clock.nowMs < 10000)
    assert(markerFile(state).open(0, adoptMoved = false).isEmpty)
    Files.write(state.resolve(MarkerFile.Name), Array[Byte]('{'))
    for (version <- Seq(0L, 1L))
      intercept[FormatException](markerFile(state).open(version, adoptMoved = false))
  }

  test("a folder that was moved is adopted once, by a file of its own") {
    for (scheme <- SteppedFileSystem.Schemes) {
      val first = folder()
      val mine = gen()
      identity(markerFile(first, scheme)).settle(mine)
      val bytes = Files.readAllBytes(first.resolve(MarkerFile.Name))
      val second = folder()
      Files.move(first, second)
      val moved = markerFile(second, scheme)
      intercept[CheckpointMovedException](moved.open(3, adoptMoved = false))
      for (_ <- 1 to 2)
        assert(identity(moved).begin(gen(), 3, stateful = true, adoptMoved = true).contains(mine))
      assert(namesIn(second) == Seq(MarkerFile.Name, s"${MarkerFile.Name}.1"))
      assert(Files.readAllBytes(second.resolve(MarkerFile.Name)).sameElements(bytes))
      assert(moved.open(3, adoptMoved = false).map(_.gen).contains(mine))
      // Where it came from is another place by now.
      Files.move(second, first)
      val back = markerFile(first, scheme)
      intercept[CheckpointMovedException](back.open(3, adoptMoved = false))
      identity(back).confirm(mine, None, adoptMoved = true)
      assert(back.open(3, adoptMoved = false).map(_.gen).contains(mine))
    }
  }

  test("files of two checkpoints in one folder are refused") {
    val state = folder()
    val file = markerFile(state)
    identity(file).settle(gen())
    val text = s"""{"format":1,"gen":"${gen()}","path":"${file.pathHash}"}"""
    Files.write(state.resolve(s"${MarkerFile.Name}.1"), text.getBytes)
    val e = intercept[FormatException](file.open(1, adoptMoved = false))
    assert(e.getMessage.contains("two checkpoints"))
  }

  test("the driver decides, and leaves the folder to the first task") {
    val state = folder()
    val (mine, zombie) = (gen(), gen())
    val decided =
      identity(markerFile(state)).begin(mine, 0, stateful = true, adoptMoved = false)
    assert(decided.contains(mine) && !Files.exists(state))
    // A task of an earlier run, which opened before, makes the file as the driver wants it.
    intercept[FencedException](
      identity(markerFile(state)).confirm(zombie, Some(zombie), adoptMoved = false))
    identity(markerFile(state)).confirm(mine, Some(gen()), adoptMoved = false)
  }

  test("the driver decides nothing for a query without state, or behind its first batch") {
    val state = folder()
    assert(identity(markerFile(state)).begin(gen(), 4, false, adoptMoved = false).isEmpty)
    intercept[MarkerMissingException](
      identity(markerFile(state)).begin(gen(), 4, stateful = true, adoptMoved = false))
    assert(!Files.exists(state))
  }

  test("a file that Hadoop left the checksum of is replaced by one without") {
    val state = folder()
    Files.createDirectories(state)
    val checksum = state.resolve(s".${MarkerFile.Name}.crc")
    Files.write(checksum, Array[Byte](1))
    identity(markerFile(state)).settle(gen())
    assert(!Files.exists(checksum))
  }
}
