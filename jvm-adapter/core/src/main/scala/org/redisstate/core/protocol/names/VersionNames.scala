package org.redisstate.core.protocol.names

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors.{RedisStateException, UnavailableException}
import org.redisstate.core.ids.{Keys, PartitionId, Pin}
import org.redisstate.core.protocol.{PartitionCalls, Refusal}

/**
 * Partitions of a store whose version is to be kept.
 *
 * @param attempts Spark's unique ids of the version by partition; None where it has one attempt
 */
final case class KeptStore(
    operator: Long,
    name: String,
    partitions: Int,
    attempts: Option[Seq[Seq[String]]])

/** Names for versions of a checkpoint, which pins hold (docs/format.md, section 14). */
final class VersionNames(backend: RedisBackend, prefix: String, gen: String) {
  import PartitionCalls.words
  import VersionNames._

  private val query = Keys.query(prefix, gen)

  /**
   * Keeps the state after a batch in all partitions, or in none.
   *
   * @param nowMs time of the server's clock
   * @return whether the name is new; false if another version has it
   * @throws RedisStateException if a partition refuses; then no pin stays
   */
  def keep(name: String, batch: Long, stores: Seq[KeptStore], nowMs: Long, forMs: Long): Boolean = {
    val what = s"keep the state after batch $batch of checkpoint $gen as $name"
    // Another run may keep the same version under the same name at this moment.
    val owner = s"$OwnerPrefix$name.${Pin.newUid().take(CallDigits)}"
    if (entryOf(what, name).nonEmpty) false
    else {
      val pinned =
        try pinAll(what, owner, batch + 1, stores, forMs + LongerMs)
        catch { case NonFatal(e) => unpin(owner, stores); throw e }
      // Where this fails, the pins stay until they expire: the name may arrive late.
      val isNew = enter(what, name, owner, batch, pinned, nowMs, nowMs + forMs)
      if (!isNew) unpin(owner, stores)
      isNew
    }
  }

  private def pinAll(
      what: String,
      owner: String,
      version: Long,
      stores: Seq[KeptStore],
      ttlMs: Long): Seq[(String, Int)] = {
    val pinned = stores.flatMap { store =>
      val count = pinStore(what, owner, version, store, ttlMs)
      if (count > 0) Some(s"${store.operator}:${store.name}" -> count) else None
    }
    if (pinned.isEmpty)
      throw new UnavailableException(s"$what: no partition holds that version. Nothing is kept.")
    pinned
  }

  /**
   * Removes the names of expired versions; maintenance ends their pins.
   *
   * @param fields of the query
   * @param nowMs time of the server's clock
   */
  def removeExpired(fields: Map[String, String], nowMs: Long): Unit =
    fields.foreach {
      case (field, entry @ Expires(at))
          if field.startsWith(KeepPrefix) && at.toLong > 0 && at.toLong <= nowMs =>
        OwnerOf.findFirstMatchIn(entry).foreach { owner =>
          val args = Seq(field, owner.group(1)).map(Command.bytes)
          backend.script(s"remove the name $field of $gen", Script.Forget, Seq(query), args)
        }
      case _ => ()
    }

  /** Returns when the versions whose names begin with a prefix were kept. */
  def timesOf(fields: Map[String, String], namePrefix: String): Iterable[Long] =
    fields.collect {
      case (field, At(at)) if field.startsWith(KeepPrefix + namePrefix) => at.toLong
    }

  /**
   * Pins a store. A stage can have more tasks than the store has partitions; the partitions after
   * the last one were never written. A store of an earlier plan lacks the version, and is skipped.
   *
   * @return how many partitions were pinned
   */
  private def pinStore(
      what: String,
      owner: String,
      version: Long,
      store: KeptStore,
      ttlMs: Long): Int = {
    val count = store.attempts.fold(store.partitions)(_.size)
    val replies = (0 until count).map { number =>
      val uids = store.attempts.fold(Seq(""))(_(number))
      uids.iterator.map(pin(what, owner, version, at(store, number), _, ttlMs))
        .find(_.head == Ok).getOrElse(
          pin(what, owner, version, at(store, number), uids.headOption.getOrElse(""), ttlMs))
    }
    val pinned = replies.takeWhile(_.head == Ok).size
    replies.zipWithIndex.drop(pinned).foreach { case (reply, number) =>
      val isLeftOut = reply == Unwritten || (pinned == 0 && Missing(reply.head))
      if (!isLeftOut) throw Refusal.of(what, reply, version, at(store, number))
    }
    pinned
  }

  private def pin(
      what: String,
      owner: String,
      version: Long,
      id: PartitionId,
      uid: String,
      ttlMs: Long): Seq[String] =
    words(new PartitionCalls(backend, id).script(
      what,
      Script.Pin,
      Seq(owner, Keep, version.toString, uid, ttlMs.toString)))

  /** Enters the name after all pins: a reader that finds it finds all of them. */
  private def enter(
      what: String,
      name: String,
      owner: String,
      batch: Long,
      pinned: Seq[(String, Int)],
      nowMs: Long,
      expiresMs: Long): Boolean = {
    val pins = pinned.map { case (store, count) => s"${quoted(store)}:$count" }.mkString(",")
    val entry =
      s"""{"batch":$batch,"version":${batch + 1},"at":$nowMs,"expires":$expiresMs,""" +
        s""""owner":"$owner","pins":{$pins}}"""
    backend.call(what, Seq(Command("HSETNX", query, KeepPrefix + name, entry)))
    entryOf(what, name).exists(_.contains(s""""$owner""""))
  }

  private def entryOf(what: String, name: String): Option[String] =
    backend.call(what, Seq(Command("HGET", query, KeepPrefix + name))).head match {
      case found: Array[Byte] => Some(new String(found, UTF_8))
      case _ => None
    }

  private def unpin(owner: String, stores: Seq[KeptStore]): Unit =
    for {
      store <- stores
      number <- 0 until store.attempts.fold(store.partitions)(_.size)
    } {
      try {
        val calls = new PartitionCalls(backend, at(store, number))
        calls.script(s"end the pin of $owner in checkpoint $gen", Script.Unpin, Seq(owner, ""))
        ()
      } catch {
        // The pin has an expiry, at which maintenance ends it.
        case e: RedisStateException => log.info("{}", e.getMessage)
      }
    }

  private def at(store: KeptStore, number: Int): PartitionId =
    PartitionId(prefix, gen, store.operator, number, store.name)

  private def quoted(text: String): String =
    text.flatMap {
      case '"' => "\\\""
      case '\\' => "\\\\"
      case c if c < ' ' => f"\\u${c.toInt}%04x"
      case c => c.toString
    }.mkString("\"", "", "\"")
}

object VersionNames {
  private val log = LoggerFactory.getLogger(classOf[VersionNames])
  private val OwnerPrefix = "keep."
  private val KeepPrefix = "keep:"
  private val Keep = "keep"
  private val Ok = "OK"
  private val Unwritten = Seq("STATE_LOST", "0", "0")
  private val Missing = Set("STATE_LOST", "VERSION_EXPIRED")
  private val CallDigits = 8
  private val Expires = """(?s).*"expires":\s*([0-9]{1,18}).*""".r
  private val OwnerOf = """"owner":\s*"([^"]+)"""".r
  private val At = """(?s).*"at":\s*([0-9]{1,18}).*""".r

  /** Time that pins outlive their name. */
  private val LongerMs = 60000L
}
