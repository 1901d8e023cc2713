package org.redisstate.core.backend

import org.redisstate.core.errors.{
  FullException,
  InternalException,
  PermissionException,
  RedisStateException
}

/** What an error reply means for the caller: the table of docs/errors.md. */
sealed trait ReplyClass

object ReplyClass {

  /** Waiting and sending again helps. */
  case object Transient extends ReplyClass

  /** The server is out of memory or cannot persist: the task fails, nothing partial stays. */
  case object Full extends ReplyClass

  /** The script cache was flushed: send the script itself. */
  case object NoScript extends ReplyClass

  /** The user lacks a right. */
  case object Permission extends ReplyClass

  case object Programming extends ReplyClass

  private val transient = Set(
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "READONLY",
    "NOREPLICAS",
    "UNBLOCKED")
  private val full = Set("OOM", "MISCONF")
  private val permission = Set("NOPERM", "WRONGPASS", "NOAUTH")

  /** What Redis 6.2 and 7.0, and newer ones, say of a command inside a script. */
  private val permissionInScript = Seq("user executing the script can't run", "ACL failure")

  /**
   * A key that only the script names is on another node, for as long as its slot is half moved; or
   * the server became a replica between a commit and the wait after it.
   */
  private val transientTexts = Seq(
    "non local key in a cluster node",
    "while the cluster is down",
    "cannot be used with replica instances")

  /** What Redis 6.2 puts before the reply to a command inside a script. */
  private val around = """(?s)Error running script .*@user_script: ?\d+: -(?=[A-Z]+ )""".r

  /** An error reply without what an old server puts before it; its first word says what it is. */
  def bare(reply: String): String =
    around.findFirstMatchIn(reply).fold(reply)(found => reply.substring(found.end))

  def of(reply: String): ReplyClass = {
    val message = bare(reply)
    val word = message.takeWhile(_ != ' ')
    if (transient(word) || transientTexts.exists(message.contains)) Transient
    else if (full(word) || message.contains("OOM command not allowed")) Full
    else if (word == "NOSCRIPT") NoScript
    else if (permission(word) || permissionInScript.exists(message.contains)) Permission
    else if (word == "EXECABORT") of(message.split(": ").lift(1).getOrElse(""))
    else Programming
  }

  /** The named error for a reply that is final. */
  def failure(what: String, message: String): RedisStateException = of(message) match {
    case Full =>
      new FullException(s"$what: the server answers '$message'. Nothing of this attempt stays. " +
        "Free memory or disk space there (a lower versionsToRetain helps); the query can then go " +
        "on.")
    case Permission =>
      new PermissionException(s"$what: the server answers '$message'. Give the user that right; " +
        "`redis-state acl` prints all that it needs.")
    case _ => new InternalException(s"$what: the server answers '$message'.")
  }
}
