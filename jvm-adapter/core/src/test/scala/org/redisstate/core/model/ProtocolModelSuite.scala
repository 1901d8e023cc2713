package org.redisstate.core.model

import scala.collection.mutable
import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.backend._
import org.redisstate.core.ids.Sha256
import org.redisstate.core.protocol.CheckpointFormat
import org.redisstate.core.protocol.CheckpointFormat.{V1, V2}

/**
 * Random schedules of the protocol against a plain model, on a real server. `REDIS_STATE_SEED`
 * replays one schedule, `REDIS_STATE_SCHEDULES` changes their number.
 */
class ProtocolModelSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val schedules = sys.env.get("REDIS_STATE_SCHEDULES").fold(200)(_.toInt)
  private val seed = sys.env.get("REDIS_STATE_SEED").map(_.toLong)
  private lazy val server = new RedisServerProcess

  private lazy val transport = Transports.to(
    TestConnection.settings(server.url, deadlineMs = 10000, connectionsMax = 64))

  override def afterAll(): Unit = {
    transport.close()
    server.close()
  }

  private def check(formats: Seq[CheckpointFormat], schedules: Int, required: Seq[String]): Unit = {
    val counters = new Scheduler.Counters
    val seeds = seed.fold(1L to schedules.toLong)(s => s to s)
    seeds.foreach { n =>
      val schedule = new Schedule(new Random(n), transport, f"$n%032x", counters, formats)
      val problems =
        try schedule.run()
        catch { case e: Exception => Seq(s"$e at ${e.getStackTrace.take(4).mkString(" < ")}") }
      assert(
        problems.isEmpty,
        s"seed $n (REDIS_STATE_SEED=$n replays it): ${problems.mkString("; ")}")
    }
    info(s"seeds ${seeds.head} to ${seeds.last}: $counters")
    if (seed.isEmpty) {
      required.foreach(name =>
        assert(counters(name) > 0, s"no schedule reached '$name': $counters"))
    }
  }

  test(s"each load gives the model's content or a named error, in $schedules schedules") {
    check(Seq(V1), schedules, required)
  }

  test(s"each attempt loads by its uid, in $schedules schedules of format 2") {
    check(
      Seq(V2),
      schedules,
      required ++ Seq(
        "choices",
        "attempts read",
        "logged versions read",
        "copies refused"))
  }

  test(s"a query goes over to format 2 while it lives, in ${schedules / 2} schedules") {
    check(Seq(V1, V2), schedules / 2, required ++ Seq("switches", "choices", "attempts read"))
  }

  private lazy val required = Seq(
    "commits",
    "loads compared",
    "killed",
    "lost requests",
    "lost replies",
    "late deliveries",
    "rewinds",
    "second starts",
    "zombie attempts",
    "fail-overs",
    "expiries",
    "snapshots",
    "retentions",
    "FENCED",
    "STATE_LOST",
    "VERSION_EXPIRED"
  )

  test("a key name holds no user text") {
    assert(Sha256.first16("default") == "37a8eec1ce19687d")
    assert(mutable.Set(Sha256.first16("}:{"), Sha256.first16("")).forall(_.matches("[0-9a-f]{16}")))
  }
}
