package org.apache.spark.sql.redisstate

import org.json4s.DefaultFormats
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.checkpoint.QueryEntry
import org.apache.spark.sql.redisstate.executor.ExecutorRegistry
import org.apache.spark.sql.redisstate.query.StartCheck

/** Numbers of this module, on the table of `LimitsSuite`. */
final class SparkLimitsSuite extends AnyFunSuite {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  private val ours = Map[String, Long](
    "ephemeralKeepMs" -> QueryEntry.EphemeralKeepMs,
    "instanceTtlMs" -> ExecutorRegistry.InstanceTtlMs,
    "beatsATtl" -> ExecutorRegistry.InstanceTtlMs / ExecutorRegistry.HeartbeatMs,
    "startCheckLimitMs" -> StartCheck.LimitMs
  )

  test("each number is that of the table") {
    val table = SharedVectors.read("limits").extract[Seq[Limit]].map(l => l.name -> l.value).toMap
    ours.foreach { case (name, value) => assert(table.get(name).contains(value), name) }
  }
}

private final case class Limit(name: String, value: Long)
