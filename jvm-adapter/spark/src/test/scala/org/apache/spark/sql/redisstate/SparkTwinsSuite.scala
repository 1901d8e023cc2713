package org.apache.spark.sql.redisstate

import org.json4s.DefaultFormats
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.executor.Metrics

/** Names of this module, on the table of `TwinsSuite`. */
final class SparkTwinsSuite extends AnyFunSuite {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  test("each metric has its twin") {
    val table = (SharedVectors.read("twins") \ "metrics").extract[Seq[Twins]]
    assert(table.flatMap(_.jvm).sorted == Metrics.all.map(_.name).sorted)
  }
}

private final case class Twins(python: Option[String], jvm: Option[String])
