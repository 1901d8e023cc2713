package org.redisstate.core.backend

import java.util.concurrent.ThreadLocalRandom
import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{InternalException, OutcomeUnknownException, UnavailableException}

/** Time and waiting, so that tests own both. */
trait Clock {
  def nowMs: Long
  def sleep(ms: Long): Unit
}

object Clock {
  val System: Clock = new Clock {
    override def nowMs: Long = java.lang.System.nanoTime() / 1000000L
    override def sleep(ms: Long): Unit = Thread.sleep(ms)
  }
}

/**
 * Sends commands until they are answered: every operation of the protocol is idempotent, so a lost connection or a transient
 * reply is answered by sending the same bytes again, until the deadline.
 *
 * @param cancelled asked between two tries; true ends them (Spark: the task was killed)
 * @param firstContact looks at each server before the first operation, through the exchange that it is given
 */
final class RedisBackend(
    transport: Transport,
    deadlineMs: Long,
    clock: Clock,
    cancelled: () => Boolean,
    firstContact: (Seq[Command] => Seq[AnyRef]) => Unit = _ => ())
    extends AutoCloseable {
  import RedisBackend._

  val roundTrips: AtomicLong = new AtomicLong
  val bytesSent: AtomicLong = new AtomicLong
  val bytesRead: AtomicLong = new AtomicLong

  /** Pipelined commands; each reply is neither an error nor transient. */
  def call(what: String, commands: Seq[Command]): Seq[AnyRef] =
    retry(what, mayHaveApplied = false) {
      val replies = exchange(commands)
      replies.foreach { case ErrorReply(m) => reject(what, m); case _ => () }
      replies
    }

  /** Runs a script by its hash, or by its text where the server does not know it. */
  def script(what: String, script: Script, keys: Seq[String], args: Seq[Array[Byte]]): Seq[AnyRef] =
    retry(what, mayHaveApplied = false) {
      exchange(Seq(script.byHash(keys, args))).head match {
        case ErrorReply(m) if ReplyClass.of(m) == ReplyClass.NoScript =>
          asSeq(what, exchange(Seq(script.byText(keys, args))).head)
        case reply => asSeq(what, reply)
      }
    }

  /** `MULTI` … `EXEC` in one write; the replies of the commands in it. */
  def transaction(what: String, commands: Seq[Command]): Seq[AnyRef] =
    retry(what, mayHaveApplied = true) {
      val replies = exchange(Multi +: commands :+ Exec)
      replies.init.foreach { case ErrorReply(m) => reject(what, m); case _ => () }
      replies.last match {
        case ErrorReply(m) => reject(what, m)
        case results: Seq[_] if results.size == commands.size =>
          results.foreach { case ErrorReply(m) => reject(what, m); case _ => () }
          results.asInstanceOf[Seq[AnyRef]]
        case _ =>
          throw new InternalException(s"$what: EXEC answered something else than its results.")
      }
    }

  override def close(): Unit = transport.close()

  @volatile private var contacted = false

  private def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    if (!contacted) {
      transport.exchanges.foreach(firstContact)
      contacted = true
    }
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(commands.iterator.map(_.bytes).sum)
    val replies = transport.exchange(commands)
    bytesRead.addAndGet(replies.iterator.map(sizeOf).sum)
    replies
  }

  private def asSeq(what: String, reply: AnyRef): Seq[AnyRef] = reply match {
    case ErrorReply(m) => reject(what, m)
    case results: Seq[_] => results.asInstanceOf[Seq[AnyRef]]
    case _ => throw new InternalException(s"$what: a script answered something else than an array.")
  }

  private def reject(what: String, message: String): Nothing =
    if (ReplyClass.of(message) == ReplyClass.Transient) throw new TransientReply(message)
    else throw ReplyClass.failure(what, message)

  private def retry[A](what: String, mayHaveApplied: Boolean)(attempt: => A): A = {
    val end = clock.nowMs + deadlineMs
    var tries = 0
    var last: RuntimeException = null
    while (true) {
      try return attempt
      catch {
        case e: TransportException => last = e
        case e: TransientReply => last = e
      }
      tries += 1
      val left = end - clock.nowMs
      if (left <= 0 || cancelled()) {
        val found = s"$what: no answer after $tries tries in $deadlineMs ms: ${last.getMessage}."
        if (mayHaveApplied) {
          throw new OutcomeUnknownException(
            s"$found It may have been applied. Spark runs the batch again, " +
              "which is safe either way.",
            last)
        }
        throw new UnavailableException(
          s"$found Check that the server runs and is reachable from driver and " +
            "executors; the query can be started again without loss.",
          last)
      }
      log.warn("{}: try {} failed ({}), trying again", what, tries: Integer, last.getMessage)
      val ceiling = math.min(BackoffMaxMs, BackoffMinMs << math.min(tries - 1, 10))
      clock.sleep(math.min(left, ThreadLocalRandom.current().nextLong(ceiling / 2, ceiling + 1)))
    }
    throw new InternalException(what)
  }
}

object RedisBackend {
  private val log = LoggerFactory.getLogger(classOf[RedisBackend])
  private val Multi = Command("MULTI")
  private val Exec = Command("EXEC")
  private val BackoffMinMs = 50L
  private val BackoffMaxMs = 2000L

  private final class TransientReply(message: String) extends RuntimeException(message)

  private def sizeOf(reply: AnyRef): Long = reply match {
    case bytes: Array[Byte] => bytes.length.toLong
    case items: Seq[_] => items.iterator.map(i => sizeOf(i.asInstanceOf[AnyRef])).sum
    case _ => 8L
  }
}
