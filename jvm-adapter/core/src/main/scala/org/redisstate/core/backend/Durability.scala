package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.errors.{ConfigException, PermissionException}

/**
 * Option `durability`: conditions that a commit waits for after the server's reply.
 *
 * @param replicas how many replicas must have received it
 * @param aof whether it must be on disk
 */
final case class Durability(replicas: Int, aof: Boolean) {
  def asked: Boolean = aof || replicas > 0

  /** Returns the text of the option. */
  override def toString: String = {
    val parts = Seq(Option.when(aof)("aof"), Option.when(replicas > 0)(s"replicas:$replicas"))
    if (asked) parts.flatten.mkString("+") else "none"
  }
}

object Durability {
  val None: Durability = Durability(0, aof = false)

  /** Older servers cannot be asked whether something is on disk; there `appendfsync always` counts. */
  val WaitAofSince: (Int, Int) = (7, 2)

  /** Asks what [[checkSettings]] judges. */
  val FileSettings: Command = Command("CONFIG", "GET", "append*")

  private val Replicas = ".*replicas:([0-9]+)".r

  /** @param option its text, which is checked already */
  def of(option: String): Durability = {
    val replicas = option match {
      case Replicas(number) => number.toInt
      case _ => 0
    }
    Durability(replicas, option.startsWith("aof"))
  }

  /**
   * Refuses a server without `WAITAOF` that answers before what it answers for is on disk.
   *
   * @param settings its answer to [[FileSettings]]; an error means that it did not say
   * @param server which one, and its version
   */
  def checkSettings(what: String, settings: AnyRef, server: String): Unit = {
    val found = settings match {
      case words: Seq[_] =>
        words.map(text).grouped(2).collect { case Seq(name, value) => name -> value }.toMap
      case _ => Map.empty[String, String]
    }
    if (found.isEmpty) {
      throw new PermissionException(
        noFile(
          what,
          s"$server does not allow this user to read its settings (the right 'config|get')"))
    }
    if (!found.get("appendonly").contains("yes"))
      throw new ConfigException(noFile(what, s"$server has appendonly no"))
    if (!found.get("appendfsync").contains("always")) {
      val is = found.getOrElse("appendfsync", "unknown")
      throw new ConfigException(noFile(what, s"$server has appendfsync $is"))
    }
  }

  def noFile(what: String, found: String): String =
    s"$what; the option 'durability' requires each commit on disk; $found. Set appendonly yes on " +
      "that server, before Redis 7.2 also appendfsync always; or set 'durability' without aof."

  private def text(word: Any): String = word match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case other => String.valueOf(other)
  }
}

/**
 * Commands that wait for durability after a transaction, on the same connection, and the meaning of
 * their replies. `WAIT` and `WAITAOF` cover what their connection wrote: after a transaction that
 * wrote nothing they return at once.
 */
private[backend] final class Waiting(wanted: Durability) {
  import Waiting._

  /**
   * True if the server has `WAITAOF`; assumed until a server refuses it. A newer server also passes
   * the test of the older ones.
   */
  @volatile private var hasWaitAof = true

  /** @param limitMs how long the server may keep us waiting for it */
  def commands(limitMs: Long): Seq[Command] = {
    val (replicas, limit) = (wanted.replicas.toString, math.max(1L, limitMs).toString)
    if (wanted.aof && hasWaitAof) Seq(Command("WAITAOF", "1", replicas, limit))
    else {
      val wait = if (wanted.replicas > 0) Seq(Command("WAIT", replicas, limit)) else Nil
      if (wanted.aof) wait :+ Durability.FileSettings else wait
    }
  }

  /**
   * Returns the condition that the transaction still lacks; empty if there is none, or if a reply
   * is another error.
   *
   * @param sent what `commands` gave; another thread may have learned of the server since
   * @throws ConfigException when the server writes no file, or not at once
   */
  def missing(what: String, sent: Seq[Command], replies: Seq[AnyRef]): String = {
    val onDisk = sent.head.name == "WAITAOF"
    if (wanted.aof && !onDisk) {
      Durability.checkSettings(what, replies.last, "the server, which is older than 7.2,")
    }
    replies.head match {
      case ErrorReply(message) if onDisk && message.contains(Unknown) =>
        hasWaitAof = false
        "this server does not know WAITAOF"
      case ErrorReply(message) if onDisk && message.contains(NoFile) =>
        throw new ConfigException(Durability.noFile(what, "the server has appendonly no"))
      case Seq(local: java.lang.Long, followed: java.lang.Long) =>
        val here = if (local < 1) Seq("it is not on the server's disk") else Nil
        (here ++ short(followed, "have it on disk")).mkString(" and ")
      case followed: java.lang.Long => short(followed, "have it").mkString
      case _ => ""
    }
  }

  private def short(followed: Long, how: String): Option[String] =
    Option.when(followed < wanted.replicas)(s"$followed of ${wanted.replicas} replicas $how")
}

private object Waiting {
  val Unknown = "unknown command"
  val NoFile = "appendonly is disabled"
}
