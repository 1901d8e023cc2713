package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{FencedException, FormatException}
import org.redisstate.core.format.{EncodedField, Segment}
import org.redisstate.core.ids.{Keys, Pin}

/** Steps of a writer that arrive when their segment was published, pinned and set aside already. */
class LateStepsSuite extends AnyFunSuite {
  import ForkedPartitions._

  test("a late stage or abort leaves a delta alone that was set aside") {
    onServer { (p, _) =>
      val segment = aside(p, "d:")
      late(p, segment) {
        p.client.segments.stage(segment.ident, segment.field, fieldsOf(p, segment))
        p.client.segments.stage(segment.ident, segment.field, Nil)
        p.client.segments.stage(
          segment.ident,
          segment.field,
          Seq(EncodedField("99", Array(1.toByte))))
        p.client.abort(segment.ident)
      }
    }
  }

  test("a late publish leaves a delta alone that was set aside") {
    onServer { (p, query) =>
      val segment = aside(p, "d:")
      val parent = Pin(segment.version - 1, segment.entry.ref)
      def publish(): Unit = {
        val fields = fieldsOf(p, segment)
        val run = p.registry.lookup(query.run).get
        p.client.commit(run, parent, segment, fields, fields)
      }
      late(p, segment) {
        // The query has gone on, so the attempt is too late.
        assertThrows[FencedException](publish())
        p.raw.hset(Keys.meta(p.id), "f", "9")
        try assertThrows[FormatException](publish())
        finally p.raw.hset(Keys.meta(p.id), "f", "2"): Unit
      }
    }
  }

  test("a late snapshot leaves one alone that was set aside") {
    onServer { (p, _) =>
      val segment = aside(p, "s:")
      late(p, segment) {
        assert(!p.client.snapshots.add(segment))
        p.client.snapshots.stage(segment.ident, fieldsOf(p, segment))
        p.client.snapshots.abort(segment.ident)
        p.client.snapshots.stage(segment.ident, fieldsOf(p, segment).tail)
        assert(!p.client.snapshots.add(segment))
        assert(!p.keys.exists(_.startsWith("n:")))
      }
    }
  }

  /** The first segment of a kind that was set aside. */
  private def aside(p: TestPartition, kind: String): Segment =
    PinFields.of(p, "z").toSeq.sorted.collectFirst {
      case (ident, named) if ident.startsWith(kind) =>
        val at = named.indexOf(' ')
        Segment.parse(named.take(at), named.drop(at + 1))
    }.get

  /** Does something, and checks that the key of the segment is what it was, for ten years to come. */
  private def late(p: TestPartition, segment: Segment)(steps: => Unit): Unit = {
    val before = bytesOf(p, segment)
    assert(before.size == segment.entry.blocks)
    steps
    assert(bytesOf(p, segment) == before)
    assert(p.raw.pttl(Keys.segment(p.id, segment.ident)) > YearMs)
    assert(PinFields.of(p, "z").contains(segment.ident))
  }

  private def bytesOf(p: TestPartition, segment: Segment): Map[String, Seq[Byte]] =
    p.raw.hgetAll(Keys.segment(p.id, segment.ident).getBytes(UTF_8)).asScala.map {
      case (name, value) => new String(name, UTF_8) -> value.toSeq
    }.toMap

  private def fieldsOf(p: TestPartition, segment: Segment): Seq[EncodedField] =
    bytesOf(p, segment).toSeq.map { case (name, block) => EncodedField(name, block.toArray) }

  /** A query whose third version is pinned, and of which nothing is in the manifest any more. */
  private def onServer(body: (TestPartition, Timeline) => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val p = new TestPartition(server, versionsToRetain = 1)
      try {
        val query = new Timeline(p, "query")
        query.commit(2)
        query.maintain()
        query.commit(1)
        pin(p, "keep.third", query.newest)
        for (_ <- 0 to 3) {
          query.commit(1)
          query.maintain()
        }
        assert(PinFields.of(p, "z").keySet.map(_.take(4)) == Set("s:2:", "d:3:"))
        body(p, query)
      } finally p.close()
    }

  private val YearMs = 365 * DayMs
}
