package org.redisstate.core.store

import java.util.concurrent.{Callable, ExecutorService, Executors, TimeUnit}

import scala.collection.immutable.TreeMap
import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.backend._
import org.redisstate.core.errors.FencedException
import org.redisstate.core.format.Vectors
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.local.RowValidator
import org.redisstate.core.protocol.{
  CheckpointFormat,
  PartitionClient,
  ProtocolSettings,
  PublishedSegments,
  RunRegistry
}
import org.redisstate.core.store.resources.MemoryBudget

/**
 * Whole stores whose connections are cut, delayed, swallowed and sliced, and whose replies are
 * lost, against a plain map: siblings that commit at once, attempts of an earlier run, restarts and
 * maintenance. `REDIS_STATE_SEED` replays one schedule, `REDIS_STATE_SCHEDULES` changes their
 * number.
 */
class ProxyModelSuite extends AnyFunSuite with BeforeAndAfterAll {
  import ProxyModelSuite._
  import TestPartition._

  private val schedules = sys.env.get("REDIS_STATE_SCHEDULES").fold(60)(_.toInt)
  private val seed = sys.env.get("REDIS_STATE_SEED").map(_.toLong)
  private lazy val server = new RedisServerProcess
  private lazy val pool: ExecutorService = Executors.newFixedThreadPool(2)

  override def afterAll(): Unit = {
    pool.shutdownNow()
    server.close()
  }

  test(s"every committed version equals the model behind bad lines, in $schedules schedules") {
    val seeds = seed.fold(1L to schedules.toLong)(s => s to s)
    var met = Map.empty[String, Int]
    seeds.foreach { n =>
      val schedule = new Partition(n)
      withClue(s"seed $n (REDIS_STATE_SEED=$n replays it): ") {
        try history(schedule, new Random(n))
        finally schedule.close()
      }
      schedule.proxy.met.foreach { case (name, count) =>
        met = met.updated(name, met.getOrElse(name, 0) + count)
      }
    }
    info(s"seeds ${seeds.head} to ${seeds.last}: $met")
    if (seed.isEmpty) LineFault.All.foreach(f => assert(met.getOrElse(f.name, 0) > 0, f.name))
  }

  private type Rows = TreeMap[String, String]

  /** A partition and the bad line to it. */
  final private class Partition(seed: Long) {
    val proxy = new FaultyProxy(server.port, seed, Chances)
    val format: CheckpointFormat =
      if (seed % 2 == 0) CheckpointFormat.V1 else CheckpointFormat.V2
    private val gen = f"$seed%032x"
    private val id = PartitionId("", gen, 0, 0, "default")
    private val settings = TestConnection.settings(
      s"redis://127.0.0.1:${proxy.port}/0",
      SocketTimeoutMs,
      DeadlineMs,
      connectionsMax = 8)
    private val backend =
      new RedisBackend(Transports.to(settings), settings.deadlineMs, BriskClock, () => false)
    private val registry = new RunRegistry(backend, "", gen)
    private val budget = new MemoryBudget(1L << 26)

    /** A store of a run, with nothing cached, as on a new executor. */
    def store(run: String): PartitionVersions = {
      lazy val registered = registry.lookup(run).getOrElse(
        registry.register(run, byDriver = true, 0, Map.empty))
      val client = new PartitionClient(backend, id, ProtocolSettings(3, 0, format), registry)
      new PartitionVersions(client, run, () => registered, Default, RowValidator.None, budget)
    }

    def damaged: Seq[String] = PublishedSegments.damaged(backend, id)

    def close(): Unit = {
      backend.close()
      proxy.close()
    }
  }

  private def change(random: Random, session: WriteSession, before: Rows): Rows = {
    var rows = before
    for (_ <- 1 to random.nextInt(30)) {
      val k = key(0, random.nextInt(80).toString)
      val name = Vectors.hex(k)
      if (random.nextInt(4) == 0) {
        session.remove(k, k.length)
        rows -= name
      } else {
        val text = random.alphanumeric.take(random.nextInt(300)).mkString
        put(session, k, text)
        rows = rows.updated(name, Vectors.hex(text.getBytes))
      }
    }
    rows
  }

  private def compare(version: OpenVersion, model: Rows): Unit = {
    assert(version.numKeys == model.size)
    assert(rows(version.iterator(0)).sorted == model.toSeq)
  }

  private def history(partition: Partition, random: Random): Unit = {
    var run = "run 0"
    var store = partition.store(run)
    var model: Rows = TreeMap.empty
    var uid = Option.empty[String]
    for (version <- 0L to 5L) {
      val siblings = Seq.fill(1 + random.nextInt(2))(store.open(version, uid).write()).map {
        session => session -> change(random, session, model)
      }
      val late = Option.when(version > 0 && random.nextInt(3) == 0) {
        val session = store.open(version, uid).write()
        change(random, session, model)
        session
      }
      val committed = siblings.map { case (session, _) => atOnce(session.commit().uid) }
        .map(_.get(HangS, TimeUnit.SECONDS))
        .zip(siblings.map(_._2))
      val chosen = committed(random.nextInt(committed.size))
      if (partition.format == CheckpointFormat.V2) {
        uid = Some(chosen._1)
        model = chosen._2
        compare(store.open(version + 1, uid), model)
      } else {
        val opened = store.open(version + 1)
        model = committed.find(_._1 == opened.pin.uid).fold(fail("an attempt of nobody"))(_._2)
        compare(opened, model)
      }
      compare(partition.store("a reader").open(version + 1, uid), model)
      late.foreach(session => assertThrows[FencedException](session.commit()))
      if (random.nextInt(3) == 0) {
        val earlier = store.open(version + 1, uid).write()
        change(random, earlier, model)
        run = s"run ${version + 1}"
        store = partition.store(run)
        val first = store.open(version + 1, uid).write()
        put(first, key(0, "taken over"), "")
        first.abort()
        assertThrows[FencedException](earlier.commit())
      }
      if (random.nextInt(3) == 0) {
        store.requestSnapshot()
        store.snapshotIfDue()
        store.retain()
      }
      if (random.nextInt(4) == 0) store = partition.store(run)
    }
    compare(partition.store("a reader").open(6, uid), model)
    assert(partition.damaged.isEmpty)
  }

  private def atOnce[A](body: => A) = {
    val call: Callable[A] = () => body
    pool.submit(call)
  }
}

object ProxyModelSuite {
  private val SocketTimeoutMs = 300
  private val DeadlineMs = 60000L
  private val HangS = 120L

  private val Chances: Map[LineFault, Double] = Map(
    LineFault.Cut -> 0.01,
    LineFault.Delay -> 0.001,
    LineFault.BlackHole -> 0.0007,
    LineFault.ReplyLost -> 0.01,
    LineFault.Slices -> 0.05)

  /** Waits a tenth of what is asked: hundreds of faults, each answered by a try after a pause. */
  private object BriskClock extends Clock {
    override def nowMs: Long = Clock.System.nowMs
    override def sleep(ms: Long): Unit = Clock.System.sleep(ms / 10)
  }
}
