package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.format.Block

/** Requirements on a server: commands, and limits on the size of requests. */
object ServerNeeds {
  private val withoutArguments = Seq("MULTI", "EXEC", "TIME")

  /** Commands that a job and its scripts call; Python has the same list. */
  private[core] val Commands: Seq[String] = withoutArguments ++ Seq(
    "EVAL",
    "EVALSHA",
    "HSET",
    "HSETNX",
    "HGET",
    "HMGET",
    "HGETALL",
    "HEXISTS",
    "HLEN",
    "HDEL",
    "HRANDFIELD",
    "SET",
    "GET",
    "MGET",
    "EXISTS",
    "PEXPIRE",
    "PTTL",
    "PERSIST",
    "UNLINK",
    "RENAME"
  )

  /** Lowest limit for requests that a server accepts: a smaller request is never above one. */
  val BytesAllowedMin: Long = 1L << 20

  private val Bulk = "proto-max-bulk-len"
  private val Query = "client-query-buffer-limit"
  private val Output = "client-output-buffer-limit"
  private val Clients = "maxmemory-clients"

  /** One by one: Redis 6.2 takes one name. */
  val AskLimits: Seq[Command] =
    Seq(Bulk, Query, Output, Clients).map(name => Command("CONFIG", "GET", name))

  /**
   * Returns each command with a wrong number of arguments, so that it does nothing. A server first
   * looks for the command, then counts its arguments, and only then checks rights.
   */
  def trial: Seq[Command] =
    Commands.map(name => if (withoutArguments.contains(name)) Command(name, "x") else Command(name))

  /** Returns the commands that the server lacks, by its replies to [[trial]]. */
  def absent(replies: Seq[AnyRef]): Seq[String] = Commands.zip(replies).collect {
    case (name, ErrorReply(message)) if ReplyClass.of(message) == ReplyClass.Lacking => name
  }

  /**
   * Returns the settings in the answers to [[AskLimits]], without those that the user may not see.
   */
  def settingsIn(replies: Seq[AnyRef]): Map[String, String] =
    replies.collect { case words: Seq[_] =>
      words.map(text).grouped(2).collect { case Seq(name, value) => name -> value }.toSeq
    }.flatten.toMap

  /** One sentence for each limit below what a row may need. */
  def warnings(url: String, settings: Map[String, String]): Seq[String] = {
    val requests = Seq(Bulk, Query).filter { name =>
      val limit = number(settings, name)
      0 < limit && limit < Block.RawLengthMax
    }
    requests.map { name =>
      s"$url has $name ${settings(name)}: a block may have ${Block.RawLengthMax} bytes, and a " +
        "commit with a block above that limit fails"
    } ++ replyLimits(settings).map { limit =>
      s"$url has $limit: the server closes the connection on a larger reply, so reading " +
        "a large partition may fail"
    }
  }

  /** Returns the limit that an argument of this size exceeds. */
  def exceeded(settings: Map[String, String], argumentBytes: Long): Option[String] =
    Seq(Bulk, Query).find { name =>
      val limit = number(settings, name)
      0 < limit && limit < argumentBytes
    }.map(name => s"$name ${settings(name)}")

  /** Returns advice for a server that closes the connection repeatedly. */
  def hintOfLimits(settings: Map[String, String], sentBytes: Long, argumentBytes: Long): String = {
    val query = number(settings, Query)
    val low = replyLimits(settings) ++
      Option.when(0 < query && query < sentBytes)(s"$Query ${settings(Query)}")
    if (low.nonEmpty)
      s"It has ${low.mkString(" and ")}, which closes connections: raise that limit."
    else if (settings.nonEmpty) "The server's log has the reason."
    else {
      s"The server closes the connection, as it does above $Bulk, $Query (sent: $sentBytes bytes, " +
        s"$argumentBytes of them in one argument), $Output or $Clients: compare these limits, and read " +
        "the server's log."
    }
  }

  /** Bytes of all arguments, and of the longest one. */
  def sizesOf(commands: Seq[Command]): (Long, Long) = (
    commands.iterator.map(_.bytes).sum,
    commands.iterator.flatMap(_.args).map(_.length.toLong).maxOption.getOrElse(0L))

  private def replyLimits(settings: Map[String, String]): Seq[String] = {
    val normal = settings.getOrElse(Output, "").split(' ').toSeq.grouped(4).collectFirst {
      case Seq("normal", hard, soft, _*) if hard != "0" || soft != "0" =>
        s"$Output normal $hard $soft"
    }
    val clients = settings.get(Clients).filter(_ != "0").map(limit => s"$Clients $limit")
    normal.toSeq ++ clients
  }

  private def number(settings: Map[String, String], name: String): Long =
    settings.get(name).flatMap(_.toLongOption).getOrElse(0L)

  private def text(word: Any): String = word match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case other => String.valueOf(other)
  }
}
