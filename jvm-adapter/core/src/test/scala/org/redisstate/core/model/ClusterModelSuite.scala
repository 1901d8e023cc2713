package org.redisstate.core.model

import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.TestConnection
import org.redisstate.core.backend._
import org.redisstate.core.protocol.CheckpointFormat.{V1, V2}

/**
 * The schedules of `ProtocolModelSuite` in a cluster whose slots move under them; seeds are
 * replayed in the same way.
 */
final class ClusterModelSuite extends AnyFunSuite {
  private val schedules = sys.env.get("REDIS_STATE_CLUSTER_SCHEDULES").fold(50)(_.toInt)
  private val seed = sys.env.get("REDIS_STATE_SEED").map(_.toLong)

  test(s"each load gives the model's content or a named error, in $schedules schedules") {
    Using.Manager { use =>
      val cluster = use(new RedisClusterProcesses(masters = 2))
      val settings = TestConnection.settings(
        s"redis+cluster://127.0.0.1:${cluster.nodes.head.port}",
        deadlineMs = 10000,
        connectionsMax = 64)
      val counters = new Scheduler.Counters
      val seeds = seed.fold(1L to schedules.toLong)(s => s to s)
      val moving = use(new MovingCluster(cluster, Transports.to(settings), new Random(seeds.head)))
      seeds.foreach { n =>
        val formats = if (n % 2 == 0) Seq(V1) else Seq(V2)
        val schedule = new Schedule(new Random(n), moving, f"$n%032x", counters, formats)
        val problems =
          try schedule.run()
          catch { case e: Exception => Seq(s"$e at ${e.getStackTrace.take(4).mkString(" < ")}") }
        assert(problems.isEmpty, s"seed $n: ${problems.mkString("; ")}")
      }
      val errors = Seq("ASK", "MOVED", "TRYAGAIN").map(name => name -> cluster.errors(name))
      info(s"seeds ${seeds.head} to ${seeds.last}: $counters, " +
        s"${moving.migrations} slots moved, ${errors.mkString(", ")}")
      if (seed.isEmpty) {
        assert(moving.migrations > 0)
        errors.foreach { case (name, count) => assert(count > 0, s"no schedule met $name") }
      }
    }.get
  }
}
