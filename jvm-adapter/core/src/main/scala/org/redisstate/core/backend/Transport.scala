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

/** The connection failed before all replies were read: what was sent may or may not have been applied. */
final class TransportException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)

/** The way to one server. Replies are `Array[Byte]`, `java.lang.Long`, `Seq[AnyRef]`, [[ErrorReply]] or null. */
trait Transport extends AutoCloseable {

  /**
   * Writes all commands in one flush on one connection and reads all replies.
   *
   * @throws TransportException when the connection failed
   */
  def exchange(commands: Seq[Command]): Seq[AnyRef]
}
