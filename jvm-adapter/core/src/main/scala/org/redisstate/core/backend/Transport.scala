package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

/** One Redis command with its arguments in bytes. */
final case class Command(name: String, args: Array[Array[Byte]]) {
  def bytes: Long = args.iterator.map(_.length.toLong).sum
}

object Command {
  def apply(name: String, args: String*): Command = Command(name, args.map(bytes).toArray)
  def bytes(text: String): Array[Byte] = text.getBytes(UTF_8)
}

/** An error reply of the server, as an element of what `exchange` returns or inside an array reply. */
final case class ErrorReply(message: String)

/**
 * Failure of a connection before all replies were read: the request may or may not have been
 * applied.
 *
 * @param isAnswer whether a server of ours was reached, and said that it cannot serve now
 * @param isHungUp whether the server closed the connection in place of an answer
 */
final class TransportException(
    message: String,
    cause: Throwable,
    val isAnswer: Boolean = false,
    val isHungUp: Boolean = false)
    extends RuntimeException(message, cause)

/** Address of a node; the host has no brackets. */
final case class Address(host: String, port: Int) {
  override def toString: String = if (host.contains(':')) s"[$host]:$port" else s"$host:$port"
}

/**
 * Connection to a server, or to the servers of a topology. Replies are `Array[Byte]`,
 * `java.lang.Long`, `Seq[AnyRef]`, [[ErrorReply]] or null.
 */
trait Transport extends AutoCloseable {

  /**
   * Writes all commands in one flush on one connection and reads all replies. In a cluster this
   * holds for each node that is concerned, and a transaction always goes to one.
   *
   * @throws TransportException when the connection failed
   */
  def exchange(commands: Seq[Command]): Seq[AnyRef]

  /** Returns one `exchange` for each server that holds a part of the keys. */
  def exchanges: Seq[Seq[Command] => Seq[AnyRef]] = Seq(exchange)

  /** Returns the name of the server that has a key, as far as it is known; asks nobody. */
  def serverOf(key: String): String = toString
}
