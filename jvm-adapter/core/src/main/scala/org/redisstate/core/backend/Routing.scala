package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}

import scala.collection.mutable

import redis.clients.jedis.util.JedisClusterCRC16

/** Splits a pipeline by slots: commands that belong together, and the node that owns them. */
private[backend] object Routing {
  val Slots = 16384

  /**
   * Commands that go to one node on one connection: one command, or all from `MULTI` to `EXEC` with
   * the waits after it.
   *
   * @param at where its first command stands in the pipeline
   * @param slot `None` if any node can answer
   */
  final case class Together(commands: Seq[Command], at: Int, slot: Option[Int])

  private val Asking = Command("ASKING")

  /** A command without a key, such as `WAIT`, speaks of the connection of the one before it. */
  def split(commands: Seq[Command]): Seq[Together] = {
    val found = mutable.ArrayBuffer.empty[Together]
    var at = 0
    while (at < commands.size) {
      val size = if (commands(at).name == "MULTI") untilEndOfWaits(commands, at) - at else 1
      val part = commands.slice(at, at + math.max(size, 1))
      val slot = part.iterator.flatMap(slotOf).nextOption()
      found += Together(part, at, slot.orElse(found.lastOption.flatMap(_.slot)))
      at += part.size
    }
    found.toSeq
  }

  /** Returns the end of a transaction with its waits, which go to the same node. */
  private def untilEndOfWaits(commands: Seq[Command], at: Int): Int = {
    val exec = commands.indexWhere(_.name == "EXEC", at)
    exec + 1 + commands.iterator.drop(exec + 1).takeWhile(c => BehindExec(c.name)).size
  }

  private val BehindExec = Set("WAIT", "WAITAOF", "CONFIG")

  def slotOf(command: Command): Option[Int] =
    keyOf(command).map(key => JedisClusterCRC16.getSlot(key))

  private def keyOf(command: Command): Option[Array[Byte]] = command.name match {
    case "EVAL" | "EVALSHA" =>
      Option.when(new String(command.args(1), US_ASCII).toInt > 0)(command.args(2))
    case name if Keyless(name) => None
    case _ => command.args.headOption
  }

  private val Keyless = Set(
    "MULTI",
    "EXEC",
    "ASKING",
    "WAIT",
    "WAITAOF",
    "INFO",
    "ROLE",
    "PING",
    "TIME",
    "DBSIZE",
    "SCAN",
    "CONFIG",
    "CLUSTER",
    "SCRIPT",
    "ACL",
    "COMMAND")

  /** Target of a redirected command; `ask` redirects this one time only. */
  final case class Redirect(slot: Int, to: Address, ask: Boolean)

  /** @param from who answered: a node that does not know its own host leaves it out */
  def redirect(replies: Seq[AnyRef], from: Address): Option[Redirect] =
    replies.iterator.collect { case ErrorReply(message) => message.split(' ') }.collectFirst {
      case Array(word @ ("ASK" | "MOVED"), slot, address, _*) =>
        val (host, port) = address.splitAt(address.lastIndexOf(':'))
        val named = if (host.isEmpty) from.host else host
        Redirect(slot.toInt, Address(named, port.drop(1).toInt), word == "ASK")
    }

  /** `ASKING` holds for the next command, or for the whole transaction that begins with it. */
  def asked(commands: Seq[Command]): Seq[Command] = Asking +: commands

  /** The owner of each slot, from the answer to `CLUSTER SLOTS`; `null` where there is none. */
  def owners(reply: AnyRef, from: Address): Array[Address] = {
    val table = new Array[Address](Slots)
    reply match {
      case ranges: Seq[_] =>
        ranges.foreach {
          case Seq(
                first: java.lang.Long,
                last: java.lang.Long,
                Seq(host, port: java.lang.Long, _*),
                _*) =>
            val owner = Address(hostOf(host, from), port.intValue)
            (first.intValue to last.intValue).foreach(table(_) = owner)
          case _ =>
            throw new TransportException(s"$from did not answer with a table of slots", null)
        }
      case ErrorReply(message) =>
        throw new TransportException(s"$from answers CLUSTER SLOTS with '$message'", null)
      case _ => throw new TransportException(s"$from did not answer with a table of slots", null)
    }
    table
  }

  private def hostOf(host: Any, from: Address): String = host match {
    case bytes: Array[Byte] if bytes.nonEmpty && !bytes.sameElements(Unknown) =>
      new String(bytes, UTF_8)
    case _ => from.host
  }

  private val Unknown = "?".getBytes(US_ASCII)
}
