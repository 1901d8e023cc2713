package org.apache.spark.sql.redisstate.executor

import scala.util.Try

import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.conf.QuotaLimits

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.{FormatException, QuotaException}
import org.redisstate.core.ids.Keys
import org.redisstate.core.protocol.RunRegistry

/**
 * Checks that the state of a query, and all of its key prefix, are within their limits. The bytes
 * named in manifests count, as `redis-state size` shows them. The heartbeats of executors and
 * driver check: each reads the entry of the list of sizes, and measures where it is old. So no
 * batch waits for a check, except the first one of a process and one that is about to be refused.
 * The twin is `redis_state/protocol/quota.py`; docs/format.md, section 9, has the list.
 */
private[redisstate] final class StateQuota(
    backend: RedisBackend,
    prefix: String,
    gen: String,
    limits: QuotaLimits)
    extends Logging {
  import StateQuota._
  import StateSize.fields

  /** Sizes found by the last measurement. */
  @GuardedBy("this") @volatile private var found: Option[QuotaSizes] = None
  @GuardedBy("this") private var measuringMs = 0L
  @GuardedBy("this") private var warned = Set.empty[String]

  def isOf(otherPrefix: String, otherGen: String, otherLimits: QuotaLimits): Boolean =
    prefix == otherPrefix && gen == otherGen && limits == otherLimits

  /** Checks the limits and logs one that is near; an error is for the caller. */
  def watch(): Unit = {
    val now = look(OwnAgeMs)
    val near = now.nearLimits(limits, WarnShare)
    val unsaid = synchronized {
      val names = near.map(_.option).toSet
      val before = warned
      warned = names
      near.filterNot(one => before(one.option))
    }
    unsaid.foreach { one =>
      logWarning(
        s"${one.subject(gen)} ${one.bytes} bytes in Redis, ${one.percent} % of the option ${one.option} (${one.max}). " +
          s"At the limit the query stops. ${shown(now.largest)} Raise the limit, keep fewer versions or remove state.")
    }
  }

  /**
   * Refuses to go on at a limit; asks Redis only if nobody did, or before it refuses.
   *
   * @param what was attempted, as a clause
   */
  def check(what: String): Unit = {
    val known = found.getOrElse(look(OwnAgeMs))
    if (known.nearLimits(limits, 1.0).nonEmpty) {
      val now = look(RefusalAgeMs)
      refuseAt(
        now,
        what,
        "The batch was not started; the state is intact. Raise the limit, keep fewer versions (versionsToRetain), or remove " +
          "state, then start the query again."
      )
    }
  }

  /**
   * Refuses to go on at a limit, by what is there at this moment.
   *
   * @param what was attempted, as a clause
   * @param advice what became of it, and what to do
   */
  def checkNow(what: String, advice: String): Unit = refuseAt(look(ageMs = 0), what, advice)

  private def refuseAt(now: QuotaSizes, what: String, advice: String): Unit =
    now.nearLimits(limits, 1.0).headOption.foreach(one => throw refused(what, one, now, advice))

  private def refused(what: String, one: Near, now: QuotaSizes, advice: String): QuotaException =
    new QuotaException(
      s"$what: ${one.subject(
          gen)} ${one.bytes} bytes in Redis, and the option ${one.option} allows ${one.max}. " +
        s"${shown(now.largest)} $advice `redis-state size QUERY` shows where the bytes are.")

  /** @param ageMs from when on the entry of the query is too old to go by */
  private def look(ageMs: Long): QuotaSizes = synchronized {
    val (nowMs, entries) = read()
    val mayBeMs = if (ageMs == OwnAgeMs) math.max(ageMs, measuringMs * RestShare) else ageMs
    val own = entries.get(gen).filter(_.isYoung(nowMs, mayBeMs)).getOrElse(measured(nowMs))
    val others =
      limits.prefix.fold(Map.empty[String, SizeEntry])(_ => othersOf(entries - gen, nowMs))
    val now = QuotaSizes(own.bytes, own.bytes + others.values.map(_.bytes).sum, own.largest)
    found = Some(now)
    now
  }

  private def measured(nowMs: Long): SizeEntry = {
    val beganNs = System.nanoTime()
    val (bytes, largest) = StateSize.of(backend, prefix, gen)
    measuringMs = (System.nanoTime() - beganNs) / 1000000L
    val entry =
      SizeEntry(nowMs, bytes, largest, limits.state.getOrElse(0L), limits.prefix.getOrElse(0L))
    write(Map(gen -> entry))
    entry
  }

  /** Returns the entries of the key prefix; old ones are measured again, for a limited time. */
  private def othersOf(entries: Map[String, SizeEntry], nowMs: Long): Map[String, SizeEntry] = {
    val what = "list checkpoints"
    val list = fields(backend.call(what, Seq(Command("HGETALL", Keys.checkpoints(prefix)))).head)
    val listed = list.grouped(2).map(_.head).filterNot(_.contains(':')).toSet - gen
    val gone = entries.keySet -- listed
    if (gone.nonEmpty)
      backend.call(what, Seq(Command("HDEL", Keys.sizes(prefix) +: gone.toSeq: _*)))
    val untilNs = System.nanoTime() + OthersMaxMs * 1000000L
    val old = listed.toSeq.filterNot(entries.get(_).exists(_.isYoung(nowMs, OthersAgeMs)))
      .sortBy(entries.get(_).fold(0L)(_.atMs))
    val fresh = old.iterator.takeWhile(_ => System.nanoTime() < untilNs).map { other =>
      val before = entries.getOrElse(other, SizeEntry(0, 0, Nil, 0, 0)).copy(atMs = nowMs)
      other -> (
        try {
          val (bytes, largest) = StateSize.of(backend, prefix, other)
          before.copy(bytes = bytes, largest = largest)
        } catch {
          case e: FormatException =>
            logWarning(s"checkpoint $other is not counted: ${e.getMessage}")
            before
        })
    }.toMap
    if (fresh.nonEmpty) write(fresh)
    entries.filter { case (other, _) => listed(other) } ++ fresh
  }

  private def read(): (Long, Map[String, SizeEntry]) = {
    val sizes = Keys.sizes(prefix)
    val what = "read the sizes of states"
    val wanted =
      if (limits.prefix.isEmpty) Command("HMGET", sizes, gen) else Command("HGETALL", sizes)
    val reply = backend.call(what, Seq(wanted)).head
    val nowMs = new RunRegistry(backend, prefix, gen).nowMs
    val texts = if (limits.prefix.isEmpty) gen +: fields(reply) else fields(reply)
    val entries = texts.grouped(2).collect { case Seq(of, text) => decode(text).map(of -> _) }
    nowMs -> entries.flatten.toMap
  }

  private def write(entries: Map[String, SizeEntry]): Unit = {
    val words = entries.toSeq.flatMap { case (of, entry) => Seq(of, encode(entry)) }
    backend.call(
      "record the sizes of states",
      Seq(Command("HSET", Keys.sizes(prefix) +: words: _*)))
    ()
  }
}

private[redisstate] object StateQuota {
  import StateSize.PartitionSize

  /** Age from which the query's own entry is measured again. */
  private val OwnAgeMs = 30000L

  /** Greatest age of an entry before a refusal: state may have been removed. */
  private val RefusalAgeMs = 2000L
  private val OthersAgeMs = 600000L
  private val OthersMaxMs = 1000L

  /** Measuring takes at most one part in this many of a process's time. */
  private val RestShare = 100L
  private val WarnShare = 0.8

  /** Entry of the list of sizes; a limit that is not set is 0. */
  private final case class SizeEntry(
      atMs: Long,
      bytes: Long,
      largest: Seq[PartitionSize],
      stateMax: Long,
      prefixMax: Long) {

    /** Returns false for an entry of the future, too: another server's clock wrote its time. */
    def isYoung(nowMs: Long, ageMs: Long): Boolean = 0 <= nowMs - atMs && nowMs - atMs < ageMs
  }

  private final case class Near(option: String, bytes: Long, max: Long) {
    def percent: Long = bytes * 100 / max
    def subject(gen: String): String =
      if (option == "stateBytesMax") s"the state of checkpoint $gen has"
      else "all states of the key prefix have"
  }

  private final case class QuotaSizes(
      stateBytes: Long,
      prefixBytes: Long,
      largest: Seq[PartitionSize]) {
    def nearLimits(limits: QuotaLimits, share: Double): Seq[Near] =
      (limits.state.map(Near("stateBytesMax", stateBytes, _)).toSeq ++
        limits.prefix.map(Near("prefixBytesMax", prefixBytes, _)))
        .filter(one => one.bytes >= one.max * share)
  }

  private def shown(largest: Seq[PartitionSize]): String =
    if (largest.isEmpty) "This query has no state yet."
    else largest.map(one =>
      s"operator ${one.operator} partition ${one.partition} store ${one.store}: ${one.bytes} bytes")
      .mkString("Largest of this query: ", "; ", ".")

  private def encode(entry: SizeEntry): String = {
    val largest = entry.largest.map(one =>
      List(render(one.operator), render(one.store), render(one.partition), render(one.bytes)))
    compact(render(
      ("at" -> entry.atMs) ~ ("bytes" -> entry.bytes) ~ ("stateMax" -> entry.stateMax) ~
        ("prefixMax" -> entry.prefixMax) ~ ("largest" -> largest)))
  }

  /** Parses an entry; None for a damaged one, which is measured again and written anew. */
  private def decode(text: String): Option[SizeEntry] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    Try {
      val json: JValue = parse(text)
      val largest = (json \ "largest").children.map(one =>
        PartitionSize(
          one(0).extract[Long],
          one(1).extract[String],
          one(2).extract[Int],
          one(3).extract[Long]))
      SizeEntry(
        (json \ "at").extract[Long],
        (json \ "bytes").extract[Long],
        largest,
        (json \ "stateMax").extract[Long],
        (json \ "prefixMax").extract[Long])
    }.toOption
  }
}
