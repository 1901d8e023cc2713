package org.redisstate.core.protocol

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{RedisBackend, Script}
import org.redisstate.core.errors.{FormatException, RedisStateException}
import org.redisstate.core.protocol.manifest.Stored

/**
 * Maintenance of the pins of one partition (docs/format.md, section 14): ends expired pins, and the
 * parent's pins for a fork without foreign segments. A failure is logged; the next maintenance
 * repeats the step.
 */
private[protocol] final class PinUpkeep(backend: RedisBackend, calls: PartitionCalls) {
  import PartitionCalls.words
  import PinUpkeep._

  private val id = calls.id

  /** @param manifest all fields of the partition, read just before */
  def run(manifest: Map[String, String]): Unit = {
    val pins = manifest.toSeq.sorted.collect {
      case (field, pin) if field.startsWith(PinPrefix) =>
        field.drop(PinPrefix.length) -> pin
    }
    var clock = Option.empty[Long]
    pins.foreach { case (owner, pin) =>
      attempt(s"end the pin of $owner in $id, if it has expired") { what =>
        val expires = expiryOf(what, pin)
        if (expires > 0) {
          val now = clock.getOrElse(calls.nowMs(what))
          clock = Some(now)
          if (expires <= now) end(what, owner, expires)
        }
      }
    }
    if (manifest.contains(ParentField)) attempt(s"detach the fork $id")(detach)
  }

  private def attempt(what: String)(step: String => Unit): Unit =
    try step(what)
    catch {
      case e: RedisStateException =>
        log.warn("{} The next maintenance tries again.", e.getMessage)
      case NonFatal(e) =>
        log.warn("{} was not possible this time; the next maintenance tries again", what, e)
    }

  /** Sends the expiry that was read: a pin that was renewed meanwhile stays. */
  private def end(what: String, owner: String, expires: Long): Unit =
    if (unpin(what, calls, owner, expires.toString))
      log.info("the pin of {} in {} ended: it has expired", owner: Any, id: Any)

  private def expiryOf(what: String, pin: String): Long =
    Stored.number(what, pin.split(" ", ExpiryWord + 2).lift(ExpiryWord).getOrElse(""))

  private def detach(what: String): Unit =
    words(calls.script(what, Script.Detach, Seq(GraceMs, ""))) match {
      case Seq("NONE") | Seq("FOREIGN", _) | Seq("WAITS", _) => ()
      case Seq("DUE", parent) =>
        if (!Gen.matches(parent))
          throw new FormatException(
            s"$what: its parent '${parent.take(40)}' is not the id of a checkpoint. Restore the server's data from " +
              "before the damage.")
        val there = new PartitionCalls(backend, id.ofGen(parent))
        unpin(s"unpin checkpoint $parent, the parent of $id", there, id.gen, expires = "")
        words(calls.script(what, Script.Detach, Seq(GraceMs, AfterUnpin))) match {
          case Seq("OK") =>
            log.info("{} has all its segments itself: the pins of its parent {} ended", id, parent)
          // Another maintenance was faster, or a fail-over brought a foreign segment back.
          case Seq("NONE") | Seq("FOREIGN", _) | Seq("WAITS", _) => ()
          case reply => throw Refusal.of(what, reply, 0, id)
        }
      case reply => throw Refusal.of(what, reply, 0, id)
    }

  /** Returns whether there was such a pin. */
  private def unpin(
      what: String,
      calls: PartitionCalls,
      owner: String,
      expires: String): Boolean =
    words(calls.script(what, Script.Unpin, Seq(owner, expires))) match {
      case Seq("OK", _) => true
      case Seq("NONE") | Seq("RENEWED") => false
      case reply => throw Refusal.of(what, reply, 0, calls.id)
    }
}

private object PinUpkeep {
  private val log = LoggerFactory.getLogger(classOf[PinUpkeep])
  private val PinPrefix = "x:"
  private val ParentField = "g"
  private val ExpiryWord = 2
  private val AfterUnpin = "1"
  private val GraceMs = ProtocolSettings.DetachAfterMs.toString
  private val Gen = "[0-9a-f]{32}".r
}
