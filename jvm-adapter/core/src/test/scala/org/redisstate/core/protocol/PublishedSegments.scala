package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.format.Segment
import org.redisstate.core.ids.{Keys, PartitionId}

/** Checks the published segments of a partition that is not ephemeral: no expiry, all their blocks. */
object PublishedSegments {

  /** Returns what is wrong with them, one line each. */
  def damaged(backend: RedisBackend, id: PartitionId): Seq[String] = {
    val what = s"verify $id"
    val segments = manifest(backend, id, what).collect {
      case (field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
        Segment.parse(field, entry)
    }
    val questions = segments.flatMap { s =>
      val key = Keys.segment(id, s.ident)
      Seq(Command("HLEN", key), Command("PTTL", key))
    }
    val answers = if (questions.isEmpty) Nil else backend.call(what, questions)
    segments.zip(answers.grouped(2).toSeq).flatMap {
      case (s, Seq(blocks: java.lang.Long, ttl: java.lang.Long)) =>
        val missing = Option.when(blocks != s.entry.blocks.toLong)(
          s"${s.ident}: $blocks of ${s.entry.blocks} blocks")
        missing ++ Option.when(ttl >= 0)(s"${s.ident}: expires in $ttl ms")
      case (s, _) => Some(s"${s.ident}: no answer")
    }
  }

  private def manifest(
      backend: RedisBackend,
      id: PartitionId,
      what: String): Seq[(String, String)] = {
    val found = backend.call(what, Seq(Command("HGETALL", Keys.meta(id)))).head
    found.asInstanceOf[Seq[Array[Byte]]].map(new String(_, UTF_8)).grouped(2).collect {
      case Seq(k, v) => k -> v
    }.toSeq
  }
}
