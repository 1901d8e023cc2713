package org.redisstate.core.backend

import java.util.concurrent.{Future, FutureTask, ThreadLocalRandom}
import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{
  ConfigException,
  InternalException,
  NotDurableException,
  OutcomeUnknownException,
  RedisStateException,
  UnavailableException
}

/**
 * Sends commands until they are answered: every operation of the protocol is idempotent, so a lost
 * connection or a transient reply is answered by sending the same bytes again, until the deadline.
 *
 * @param cancelled asked between two tries; true ends them (Spark: the task was killed)
 * @param firstContact looks at each server before the first operation, through the exchange that it
 * is given
 * @param durability what commits wait for, at most `waitMs` in one try
 * @param awakeMs what one try takes at most; one that took longer slept, as the whole process did,
 * and its connection did not outlast that
 */
final class RedisBackend(
    transport: Transport,
    deadlineMs: Long,
    clock: Clock,
    cancelled: () => Boolean,
    firstContact: (Seq[Command] => Seq[AnyRef]) => Unit = _ => (),
    val durability: Durability = Durability.None,
    waitMs: Long = 1000L,
    awakeMs: Long = Long.MaxValue)
    extends AutoCloseable {
  import RedisBackend._

  val roundTrips: AtomicLong = new AtomicLong
  val bytesSent: AtomicLong = new AtomicLong
  val bytesRead: AtomicLong = new AtomicLong

  /** Number of tries that failed and were followed by another one. */
  val retries: AtomicLong = new AtomicLong

  /**
   * Returns a backend with a shorter deadline on the same connections; only this backend closes
   * them.
   */
  def within(limitMs: Long): RedisBackend =
    new RedisBackend(
      transport,
      math.min(deadlineMs, limitMs),
      clock,
      cancelled,
      firstContact,
      durability,
      waitMs,
      awakeMs)

  /** Time for which a call is repeated, and the clock by which it is. */
  def repeatsForMs: Long = deadlineMs
  def nowMs: Long = clock.nowMs

  /** Waits, by the clock of the backend. */
  def pause(ms: Long): Unit = clock.sleep(ms)

  /** Pipelined commands; each reply is neither an error nor transient. */
  def call(what: String, commands: Seq[Command]): Seq[AnyRef] =
    retry(what, mayHaveApplied = false) {
      val replies = exchange(commands)
      check(what, commands, replies)
      replies
    }

  /** Runs a script by its hash, or by its text where the server does not know it. */
  def script(what: String, script: Script, keys: Seq[String], args: Seq[Array[Byte]]): Seq[AnyRef] =
    scripts(what, script, keys, Seq(args)).head

  /**
   * Runs a script with each of these arguments in one pipeline; by its text in all of them where
   * the server does not know it.
   */
  def scripts(
      what: String,
      script: Script,
      keys: Seq[String],
      calls: Seq[Seq[Array[Byte]]]): Seq[Seq[AnyRef]] =
    retry(what, mayHaveApplied = false) {
      val replies = exchange(calls.map(script.byHash(keys, _)))
      if (lacksScript(replies))
        exchange(calls.map(script.byText(keys, _))).map(asSeq(what, _, "EVAL"))
      else replies.map(asSeq(what, _, "EVALSHA"))
    }

  /**
   * `MULTI` … `EXEC` in one write; the replies of the commands in it.
   *
   * @param byText the same with the texts of its scripts, which is sent if the server does not know
   * the hash of one: the others may have been carried out, and are then found done
   * @param counts whether these replies are of something that has to last as `durability` says;
   * then the commands have written, also if they were sent before
   * @param isCommit whether no answer until the deadline means that a version may have been
   * committed
   */
  def transaction(
      what: String,
      commands: Seq[Command],
      counts: Option[Seq[AnyRef] => Boolean] = None,
      byText: => Seq[Command] = Nil,
      isCommit: Boolean = true): Seq[AnyRef] =
    retry(what, mayHaveApplied = isCommit) {
      val waits =
        if (durability.asked && counts.nonEmpty) waiting.commands(math.min(waitMs, deadlineMs))
        else Nil
      def send(all: Seq[Command]) = exchange((Multi +: all :+ Exec) ++ waits)
        .splitAt(commands.size + 2)
      val sent = send(commands)
      val (replies, waited) = if (lacksScript(sent._1)) send(byText) else sent
      check(what, Multi +: commands, replies.init)
      replies.last match {
        case ErrorReply(m) => reject(what, m, Exec.name)
        case found: Seq[_] if found.size == commands.size =>
          val results = found.asInstanceOf[Seq[AnyRef]]
          check(what, commands, results)
          if (waits.nonEmpty && counts.exists(_(results))) checkWaits(what, waits, waited)
          results
        case _ =>
          throw new InternalException(s"$what: EXEC answered something other than its results.")
      }
    }

  /**
   * Does background work on the server that has a key, or skips it while that server is silent.
   * What the work raises, the caller gets. Must not be nested.
   *
   * @return whether the work was done
   */
  def whileAnswering(key: String)(work: => Unit): Boolean = {
    unanswered.remove()
    pauses.run(transport.serverOf(key), answersOnce(key), !unanswered.get)(work)
  }

  /** Ends a pause of background work on the server of a key: a task has written to it. */
  def endPause(key: String): Unit = pauses.endPause(transport.serverOf(key))

  /** Shortens a pause of background work on the server of a key: it has answered a task. */
  def shortenPause(key: String): Unit = pauses.shortenPause(transport.serverOf(key))

  /** Tries the server of a key once. What it refuses for good, the work finds out. */
  private def answersOnce(key: String): Boolean =
    try exchange(Seq(Command("EXISTS", key))).head match {
        case ErrorReply(message) => ReplyClass.of(message) != ReplyClass.Transient
        case _ => true
      }
    catch {
      case _: TransportException | _: HungUp => false
      case _: RedisStateException => true
    }

  private def lacksScript(replies: Seq[AnyRef]): Boolean = replies.exists {
    case ErrorReply(m) => ReplyClass.of(m) == ReplyClass.NoScript
    case results: Seq[_] => lacksScript(results.asInstanceOf[Seq[AnyRef]])
    case _ => false
  }

  private def checkWaits(what: String, sent: Seq[Command], waited: Seq[AnyRef]): Unit = {
    val missing = waiting.missing(what, sent, waited)
    if (missing.nonEmpty) throw new NotYetDurable(missing)
    check(what, sent, waited)
  }

  /**
   * Does something in the background, in the order of the calls, on a thread that no task's end
   * interrupts. It is the server's own: one that is down blocks nobody who needs another. After
   * `close` the caller does it. What is retried in it has its deadline from now on, so that what
   * waits behind others for a server that is down does not wait for as many deadlines; one try it
   * always has.
   *
   * @param lane whose calls wait for each other, and for no others
   */
  def later(lane: String)(work: => Unit): Future[_] = {
    val now = clock.nowMs
    val task = new FutureTask[Unit](() => {
      queuedMs.set(now)
      try work
      finally queuedMs.remove()
    })
    if (!lanes.add(lane, task)) task.run()
    task
  }

  /** Closes the connections after the work that `later` has queued. */
  override def close(): Unit = {
    lanes.close()
    transport.close()
  }

  /** Time at which the present work of this thread was queued; null for other work. */
  private val queuedMs = new ThreadLocal[java.lang.Long]

  private val lanes = new Lanes

  private val pauses = new ServerPauses(clock)

  /** True if the newest try of a call of this thread was not answered. */
  private val unanswered = ThreadLocal.withInitial[Boolean](() => false)
  private val waiting = new Waiting(durability)
  @volatile private var contacted = false
  @volatile private var answered = false

  private def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    if (!contacted) {
      transport.exchanges.foreach(firstContact)
      contacted = true
    }
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(commands.iterator.map(_.bytes).sum)
    val replies =
      try transport.exchange(commands)
      catch { case e: TransportException if e.isHungUp => throw new HungUp(e, commands) }
    answered = true
    bytesRead.addAndGet(replies.iterator.map(sizeOf).sum)
    replies
  }

  private def asSeq(what: String, reply: AnyRef, command: String): Seq[AnyRef] = reply match {
    case ErrorReply(m) => reject(what, m, command)
    case results: Seq[_] => results.asInstanceOf[Seq[AnyRef]]
    case _ => throw new InternalException(s"$what: a script answered something other than an " +
        "array.")
  }

  private def check(what: String, commands: Seq[Command], replies: Seq[AnyRef]): Unit =
    commands.lazyZip(replies).foreach {
      case (command, ErrorReply(message)) => reject(what, message, command.name)
      case _ => ()
    }

  private def reject(what: String, message: String, command: String): Nothing =
    if (ReplyClass.of(message) == ReplyClass.Transient) throw new TransientReply(message)
    else if (ReplyClass.isLackingInScript(message)) {
      val absent = ServerNeeds.absent(askedAside(ServerNeeds.trial))
      val names = if (absent.isEmpty) Seq(ReplyClass.UnnamedInScript) else absent
      throw ReplyClass.lacking(what, names)
    } else throw ReplyClass.failure(what, message, command)

  /** Asks the server about a failure, in a cluster any node; empty if it does not answer. */
  private def askedAside(commands: Seq[Command]): Seq[AnyRef] =
    try transport.exchanges.headOption.fold(Seq.empty[AnyRef])(_(commands))
    catch { case _: TransportException | _: RedisStateException => Nil }

  /** Returns the error for a request that is above a limit of the server. */
  private def tooLarge(what: String, sent: Seq[Command]): Option[ConfigException] = {
    val (_, longest) = ServerNeeds.sizesOf(sent)
    if (longest <= ServerNeeds.BytesAllowedMin) None
    else {
      val limits = ServerNeeds.settingsIn(askedAside(ServerNeeds.AskLimits))
      ServerNeeds.exceeded(limits, longest).map { limit =>
        new ConfigException(
          s"$what: the server closes the connection: it has $limit, and an argument has $longest " +
            "bytes. Raise that limit on the server, or make the rows smaller.")
      }
    }
  }

  private def retry[A](what: String, mayHaveApplied: Boolean)(attempt: => A): A = {
    var end = Option(queuedMs.get).fold(clock.nowMs)(_.longValue) + deadlineMs
    var wasAsleep = false
    var tries = 0
    var last: RuntimeException = null
    while (true) {
      val began = clock.nowMs
      unanswered.set(false)
      try return attempt
      catch {
        case e: TransportException => last = e
        case e: TransientReply => last = e
        case e: HungUp =>
          tooLarge(what, e.sent).foreach(throw _)
          last = e
        case e: NotYetDurable => last = e
      }
      unanswered.set(!last.isInstanceOf[NotYetDurable])
      tries += 1
      val now = clock.nowMs
      if (!wasAsleep && now - began > awakeMs) {
        wasAsleep = true
        end = now + deadlineMs
      }
      val left = end - now
      if (left <= 0 || cancelled()) throw late(what, tries, mayHaveApplied, last)
      retries.incrementAndGet()
      log.warn("{}: try {} failed ({}), trying again", what, tries: Integer, last.getMessage)
      val ceiling = math.min(BackoffMaxMs, BackoffMinMs << math.min(tries - 1, 10))
      clock.sleep(math.min(left, ThreadLocalRandom.current().nextLong(ceiling / 2, ceiling + 1)))
    }
    throw new InternalException(what)
  }

  private def isAnswered(last: RuntimeException): Boolean = last match {
    case failed: TransportException => failed.isAnswer
    case _: HungUp => false
    case _ => true
  }

  /** Returns specific advice for the last failure. */
  private def hint(last: RuntimeException): String = last match {
    case e: HungUp if !cancelled() =>
      val (sent, longest) = ServerNeeds.sizesOf(e.sent)
      val limits = ServerNeeds.settingsIn(askedAside(ServerNeeds.AskLimits))
      if (limits.isEmpty && longest <= ServerNeeds.BytesAllowedMin && !answered) ""
      else ServerNeeds.hintOfLimits(limits, sent, longest)
    case e => ReplyClass.hintOf(e.getMessage)
  }

  private def late(
      what: String,
      tries: Int,
      mayHaveApplied: Boolean,
      last: RuntimeException): RedisStateException = {
    val did = if (isAnswered(last)) "not served" else "no answer"
    val found = s"$what: $did after $tries tries in $deadlineMs ms: ${last.getMessage}."
    last match {
      case e: NotYetDurable =>
        new NotDurableException(
          s"$what: the server has the commit, but after $tries tries it is not as durable as " +
            s"durability=$durability requires: ${e.getMessage}. Spark runs the batch again and waits " +
            "again. Check INFO replication and INFO persistence of the server: do the replicas follow, " +
            "and does the disk keep up?",
          e
        )
      case e if mayHaveApplied =>
        new OutcomeUnknownException(
          s"$found It may have been applied. Spark runs the batch again, " +
            s"which is safe either way. ${hint(e)}".trim,
          e)
      case e =>
        val known = hint(e)
        val reachable = "Check that the server runs and is reachable from driver and executors"
        val todo =
          if (known.isEmpty) s"$reachable; the query can be started again without loss."
          else s"$known The query can be started again without loss."
        new UnavailableException(s"$found $todo", e, isAnswered(e))
    }
  }
}

object RedisBackend {
  private val log = LoggerFactory.getLogger(classOf[RedisBackend])
  private val Multi = Command("MULTI")
  private val Exec = Command("EXEC")
  private[core] val BackoffMinMs = 50L
  private[core] val BackoffMaxMs = 2000L

  private final class TransientReply(message: String)
      extends RuntimeException(message.stripSuffix("."))

  /** Failure: the server closed the connection instead of answering. */
  private final class HungUp(e: TransportException, val sent: Seq[Command])
      extends RuntimeException(e.getMessage, e)

  /** Failure: the transaction was applied, but a crash might undo it. */
  private final class NotYetDurable(message: String) extends RuntimeException(message)

  private def sizeOf(reply: AnyRef): Long = reply match {
    case bytes: Array[Byte] => bytes.length.toLong
    case items: Seq[_] => items.iterator.map(i => sizeOf(i.asInstanceOf[AnyRef])).sum
    case _ => 8L
  }
}
