package org.apache.spark.sql.redisstate.checkpoint

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path => LocalPath}
import java.util.UUID

import scala.util.{Failure, Random, Success, Try}

import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.{CheckpointMovedException, FormatException, UnavailableException}

/**
 * The gen of a checkpoint whose number of partitions changes in place, on file systems of every
 * kind, whoever else is at it.
 */
class RescaledMarkerSuite extends AnyFunSuite {
  import RescaledMarkerSuite._
  private val schedules = if (sys.env.contains("REDIS_STATE_LONG")) 1000 else 40
  private val batch = 5L

  /** Schemes in which a created file may replace an existing one. */
  private val Overwriting = Set("loose", "s3a")

  private def gen(): String = CheckpointIdentity.genOf(UUID.randomUUID().toString)

  private def folder(): LocalPath = Files.createTempDirectory("rescaled")

  private def markerFile(checkpoint: LocalPath, scheme: String = "file"): MarkerFile =
    new MarkerFile(s"$scheme:$checkpoint/state", SteppedFileSystem.conf)

  private def begun(checkpoint: LocalPath, scheme: String = "file"): String = {
    val file = markerFile(checkpoint, scheme)
    val first = gen()
    file.create(Marker(first, file.pathHash))
    first
  }

  private def entry(checkpoint: LocalPath, scheme: String, log: String = "offsets"): OnceFile =
    new OnceFile(new Path(s"$scheme:$checkpoint/$log/$batch"), SteppedFileSystem.conf)

  private def text(gen: Option[String], by: String): String = {
    val named = gen.fold("")(gen => s""","${MarkerFile.GenConf}":"$gen"""")
    s"""v1\n{"conf":{"by":"$by"$named}}\n-"""
  }

  private def plan(checkpoint: LocalPath, scheme: String, text: String): Boolean = {
    val file = entry(checkpoint, scheme)
    file.create(text.getBytes(UTF_8))
    file.read().exists(new String(_, UTF_8) == text)
  }

  /** The steps of a change, as `RescaleAtStart` makes them. */
  private def change(checkpoint: LocalPath, scheme: String, partitions: Int): String = {
    val (file, mine) = (markerFile(checkpoint, scheme), gen())
    file.announce(mine, Rescaled(batch, partitions))
    if (!plan(checkpoint, scheme, text(Some(mine), mine)))
      throw new UnavailableException("another run planned it")
    file.announce(mine, Rescaled(batch, partitions))
    mine
  }

  /** Commits the batch of the log's entry, as the run that continues from this entry. */
  private def commit(checkpoint: LocalPath, scheme: String): Unit =
    if (entry(checkpoint, scheme).read().isDefined) {
      entry(checkpoint, scheme, "commits").create("v1\n{}".getBytes(UTF_8))
      decide(markerFile(checkpoint, scheme))
    }

  private def decide(file: MarkerFile): Unit =
    file.undecided().foreach(change => file.decide(change.now))

  /**
   * Two changes, a run without one, one that commits the batch, and a reader at once; some end amid
   * their steps. None if the files agree with the log.
   */
  private def schedule(
      seed: Int,
      scheme: String,
      work: (LocalPath, Int) => Any): Option[String] = {
    val turns = new Turns(seed.toLong)
    val random = new Random(seed)
    val checkpoint = folder()
    val first = begun(checkpoint, scheme)
    // One thread runs at a time, so all may use one source of numbers.
    val stepsLeft = ThreadLocal.withInitial[Int](() =>
      if (random.nextInt(3) == 0) random.nextInt(12) else Int.MaxValue)
    SteppedFileSystem.step = _ => {
      stepsLeft.set(stepsLeft.get - 1)
      if (stepsLeft.get < 0) throw new Killed
      turns.step()
    }
    // What is killed amid a step may end with an error of its own.
    def add(work: => Any): Unit =
      turns.add(
        try work
        catch { case _: Exception if stepsLeft.get < 0 => throw new Killed })
    val results =
      try {
        add(work(checkpoint, 8))
        add(work(checkpoint, 3))
        add(plan(checkpoint, scheme, text(None, "plain")))
        add(markerFile(checkpoint, scheme).read())
        add(commit(checkpoint, scheme))
        turns.play()
      } finally SteppedFileSystem.step = _ => ()
    val logged = entry(checkpoint, scheme).read().map(new String(_, UTF_8))
    def agrees(when: String): Option[String] = {
      val wanted = logged.map(_.split(s""""${MarkerFile.GenConf}":"""")).collect {
        case Array(_, rest) => rest.take(32)
      }.getOrElse(first)
      Try(markerFile(checkpoint, scheme).read().get.gen) match {
        case Success(`wanted`) => None
        case Failure(e: FormatException) if isExpected(e, scheme) => None
        case other => Some(s"$when: $other, and the log has $wanted")
      }
    }
    val failed = results.collectFirst {
      case Failure(e) if !isExpected(e, scheme) => e.toString
    }
    failed.orElse(agrees("afterwards")).orElse {
      // Nothing is decided before the batch is committed; then the entry of the log is needed no more.
      decide(markerFile(checkpoint, scheme))
      agrees("before the commit").orElse {
        logged.flatMap { _ =>
          entry(checkpoint, scheme, "commits").create("v1\n{}".getBytes(UTF_8))
          decide(markerFile(checkpoint, scheme))
          decide(markerFile(checkpoint, scheme))
          Files.delete(checkpoint.resolve(s"offsets/$batch"))
          agrees("once the entry is gone")
        }
      }
    }
  }

  /**
   * Two changes, of which the later file took the place of the first one, are named until the first
   * one looks again.
   */
  private def isExpected(e: Throwable, scheme: String): Boolean = e match {
    case _: UnavailableException | _: Killed => true
    case _: FormatException => Overwriting(scheme)
    case _ => false
  }

  private def wrong(scheme: String, work: (LocalPath, Int) => Any): Option[String] =
    (1 to schedules).iterator.map(schedule(_, scheme, work)).collectFirst { case Some(found) =>
      found
    }

  for (scheme <- SteppedFileSystem.Schemes)
    test(s"the files and the log agree, whoever is killed: $scheme") {
      assert(wrong(scheme, change(_, scheme, _)) == None)
    }

  test("the schedules find a change that is planned before it is announced") {
    def hasty(checkpoint: LocalPath, partitions: Int): Any = {
      val mine = gen()
      if (!plan(checkpoint, "names", text(Some(mine), mine)))
        throw new UnavailableException("another run planned it")
      markerFile(checkpoint, "names").announce(mine, Rescaled(batch, partitions))
    }
    assert(wrong("names", hasty).nonEmpty)
  }

  test("a gen that the log names and no file announces is refused") {
    val checkpoint = folder()
    begun(checkpoint)
    val file = markerFile(checkpoint)
    file.announce(gen(), Rescaled(batch, 8))
    plan(checkpoint, "file", text(Some(gen()), "lost"))
    intercept[FormatException](file.read())
  }

  test("what is announced for a batch that was decided, or for one before it, is too late") {
    val checkpoint = folder()
    begun(checkpoint)
    val (file, mine) = (markerFile(checkpoint), gen())
    file.announce(mine, Rescaled(batch, 8))
    plan(checkpoint, "file", text(Some(mine), "it"))
    entry(checkpoint, "file", "commits").create("v1\n{}".getBytes(UTF_8))
    decide(file)
    for (late <- Seq(batch, batch - 1))
      intercept[UnavailableException](file.announce(gen(), Rescaled(late, 3)))
    file.announce(mine, Rescaled(batch, 8))
    // A run that looked before the decision, and wrote after it.
    val other = s"""{"format":2,"gen":"${gen()}","path":"x","batch":$batch,"partitions":3}"""
    Files.writeString(checkpoint.resolve(s"state/${MarkerFile.Name}.3"), other)
    assert(file.read().exists(_.gen == mine))
    assert(file.undecided().isEmpty)
  }

  test("a run that knows of the change decides it, though the log has its entry no more") {
    val checkpoint = folder()
    val first = begun(checkpoint)
    val (file, mine) = (markerFile(checkpoint), gen())
    file.announce(gen(), Rescaled(batch - 2, 6))
    file.announce(mine, Rescaled(batch, 8))
    plan(checkpoint, "file", text(Some(mine), "it"))
    val change = file.undecided().get
    assert(change.before == first)
    entry(checkpoint, "file", "commits").create("v1\n{}".getBytes(UTF_8))
    Files.delete(checkpoint.resolve(s"offsets/$batch"))
    assert(file.decide(change.now))
    assert(file.read().exists(_.gen == mine))
  }

  test("a decision keeps the path, so that a copy of the folder is refused") {
    val checkpoint = folder()
    begun(checkpoint)
    val (file, mine) = (markerFile(checkpoint), gen())
    file.announce(mine, Rescaled(batch, 8))
    plan(checkpoint, "file", text(Some(mine), "it"))
    entry(checkpoint, "file", "commits").create("v1\n{}".getBytes(UTF_8))
    val copy = folder().resolve("there")
    Files.move(checkpoint, copy)
    decide(markerFile(copy))
    intercept[CheckpointMovedException](markerFile(copy).open(1, adoptMoved = false))
  }

  test("what was announced keeps its number, and a folder that moves keeps its gen") {
    val checkpoint = folder()
    begun(checkpoint)
    val (file, mine) = (markerFile(checkpoint), gen())
    file.announce(mine, Rescaled(batch, 8))
    file.announce(mine, Rescaled(batch, 8))
    assert(file.undecided().isEmpty)
    plan(checkpoint, "file", text(Some(mine), "it"))
    val change = file.undecided().get
    assert(change.now.rescaled.contains(Rescaled(batch, 8)))
    assert(!file.decide(change.now), "its batch is not committed")
    entry(checkpoint, "file", "commits").create("v1\n{}".getBytes(UTF_8))
    assert(file.decide(change.now))
    assert(file.undecided().isEmpty)
    assert(file.read().contains(Marker(mine, file.pathHash, Some(Rescaled(batch, 8)))))
    val moved = folder().resolve("there")
    Files.move(checkpoint, moved)
    markerFile(moved).adopt()
    val there = markerFile(moved)
    assert(there.read().contains(Marker(mine, there.pathHash, Some(Rescaled(batch, 8)))))
  }
}

private object RescaledMarkerSuite {
  final class Killed extends RuntimeException
}
