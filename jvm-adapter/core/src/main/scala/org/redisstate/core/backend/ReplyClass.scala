package org.redisstate.core.backend

import org.redisstate.core.errors.{
  ConfigException,
  FormatException,
  FullException,
  InternalException,
  PermissionException,
  RedisStateException
}

/** Meaning of an error reply for the caller: the table of docs/errors.md. */
sealed trait ReplyClass

object ReplyClass {

  /** Waiting and sending again helps. */
  case object Transient extends ReplyClass

  /** The server is out of memory or cannot persist: the task fails, nothing partial stays. */
  case object Full extends ReplyClass

  /** The script cache was flushed: send the script itself. */
  case object NoScript extends ReplyClass

  /** The user lacks a right, or may not log in. */
  case object Permission extends ReplyClass

  /** The server, or a proxy before it, lacks a command. */
  case object Lacking extends ReplyClass

  /** A setting of the server forbids it. */
  case object Setting extends ReplyClass

  /** A key holds data that redis-state did not write, found by a command or script. */
  case object Damaged extends ReplyClass

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

  /** Texts of Redis 6.2, 7.0 and newer for a refused command inside a script. */
  private val permissionInScript = Seq("user executing the script can't run", "ACL failure")

  /**
   * Texts of transient errors: a key that only the script names is on another node while its slot
   * is half moved; or the server became a replica between a commit and the wait after it.
   */
  private val transientTexts = Seq(
    "non local key in a cluster node",
    "while the cluster is down",
    "cannot be used with replica instances")

  /** Prefix that Redis 6.2 adds to the reply to a command inside a script. */
  private val around = """(?s)Error running script .*@user_script: ?\d+: -(?=[A-Z]+ )""".r

  /** Reply of a server, or a cluster node, to a connection above its limit `maxclients`. */
  private val maxClients = "max number of clients"

  /** Reply to a long request on a connection that has not logged in: the server limits those. */
  private val unauthenticated = "Protocol error: unauthenticated"
  private val noPasswordSet = Seq("without any password configured", "Client sent AUTH")
  private val protectedMode = "DENIED"
  private val bulkLength = "Protocol error: invalid bulk length"
  private val noDatabase = Seq(
    "DB index is out of range",
    "invalid DB index",
    "Invalid Database",
    "SELECT is not allowed in cluster mode")

  /** Redis, Valkey and proxies each have words of their own for it. */
  private val lacks = ("(?i)(?:unknown|unsupported|disabled) (?:redis )?(?:sub)?command" +
    "|command\\b.{0,60}\\bnot (?:be )?(?:supported|available|enabled)").r
  private val named =
    """(?i)command(?: is not available)?:? ?['"`]([A-Za-z|_. ]{1,40})['"`]""".r

  private val otherType = "WRONGTYPE "

  /** Replies of Lua and of the server where a script parses an entry of another form. */
  private val damagedInScript =
    ("(?i)user_script: ?\\d+: (?:attempt to (?!call)|bad argument |invalid value |table index is nil)" +
      "|command arguments must be strings or integers|hash value is not an integer").r

  /** Text before the arguments that a server repeats of an unknown command: they may be rows. */
  private val arguments = ", with args beginning with"

  /** Advice for replies that did not change until the deadline. */
  private val hints = Map(
    "LOADING" -> "The server is loading its data: wait until it is done.",
    "BUSY" -> "A script of another program blocks the server: wait for its end, or stop it with SCRIPT KILL.",
    "CLUSTERDOWN" -> "CLUSTER INFO on a node shows how many slots are not served.",
    "MASTERDOWN" -> "The server is a replica that has lost its master: bring the master back.",
    "READONLY" -> "The server is a replica: give the address of its master.",
    "NOREPLICAS" -> "Too few replicas follow the server: bring them back, or lower min-replicas-to-write.",
    "TRYAGAIN" -> "The migration of a slot is incomplete: finish it."
  )

  /**
   * An error reply without what an old server puts before it, and without arguments; its first word
   * says what it is.
   */
  def bare(reply: String): String = {
    val cut = reply.indexOf(arguments)
    val message = if (cut < 0) reply else reply.take(cut)
    around.findFirstMatchIn(message).fold(message)(found => message.substring(found.end))
  }

  def of(reply: String): ReplyClass = {
    val message = bare(reply)
    val word = message.takeWhile(_ != ' ')
    if (transient(word) || transientTexts.exists(message.contains)) Transient
    else if (full(word) || message.contains("OOM command not allowed")) Full
    else if (word == "NOSCRIPT") NoScript
    else if (permission(word) || permissionInScript.exists(message.contains)) Permission
    else if (word == "EXECABORT") of(message.split(": ", 2).lift(1).getOrElse(""))
    else ofText(message)
  }

  private def ofText(message: String): ReplyClass =
    if (message.contains(maxClients)) Transient
    else if (isLogin(message)) Permission
    else if (message.startsWith(protectedMode) || message.contains(bulkLength)) Setting
    else if (isOfDatabase(message)) Setting
    else if (isDamaged(message)) Damaged
    else if (lacks.findFirstIn(message).isDefined) Lacking
    else Programming

  private def isDamaged(message: String): Boolean =
    message.contains(otherType) || damagedInScript.findFirstIn(message).isDefined

  /** Returns whether the server lacks the database number that the URL gives. */
  def isOfDatabase(message: String): Boolean = noDatabase.exists(message.contains)

  /** Returns whether the server wants a login that was not sent. */
  def wantsLogin(message: String): Boolean =
    message.startsWith("NOAUTH") || message.contains(unauthenticated)

  private def isLogin(message: String): Boolean =
    wantsLogin(message) || noPasswordSet.exists(message.contains)

  /** Returns whether the server closes the connection after this reply. */
  def endsConnection(message: String): Boolean = {
    val text = message.stripPrefix("ERR ")
    Seq("Protocol error", maxClients, protectedMode).exists(text.startsWith)
  }

  /**
   * Returns whether a script calls a command that the server lacks; the reply does not name the
   * command.
   */
  def isLackingInScript(message: String): Boolean =
    of(message) == Lacking && message.contains("called from")

  /** Returns advice for a transient reply that persists; empty if there is none. */
  def hintOf(message: String): String =
    if (message.contains(maxClients)) {
      "Raise maxclients on the server, or open fewer connections: fewer executors, or a lower " +
        "'connectionsMax'."
    } else hints.getOrElse(bare(message).takeWhile(_ != ' '), "")

  /**
   * Returns the named error for a final reply.
   *
   * @param command the one that was answered; empty if that is not known
   */
  def failure(what: String, message: String, command: String = ""): RedisStateException = {
    val found = s"$what: the server answers '${bare(message).stripSuffix(".")}'"
    of(message) match {
      case Full =>
        new FullException(
          s"$found. Nothing of this attempt was kept. Free memory or disk space on " +
            "the server (a lower versionsToRetain helps); then the query can continue.")
      case Permission if isLogin(message) || message.startsWith("WRONGPASS") =>
        new PermissionException(s"$found. Check username and password (or passwordFile).")
      case Permission =>
        new PermissionException(
          s"$found. Give the user that right; `redis-state acl` prints all rights " +
            "that are needed.")
      case Lacking =>
        val name = named.findFirstMatchIn(bare(message)).map(_.group(1).toUpperCase)
        lacking(what, Seq(name.getOrElse(if (command.isEmpty) UnnamedInScript else command)))
      case Damaged => damaged(what, message)
      case Setting => new ConfigException(s"$found. ${advice(message)}")
      case _ => new InternalException(s"$found.")
    }
  }

  private def damaged(what: String, message: String): FormatException = {
    val (found, advice) =
      if (message.contains(otherType)) {
        (
          "a key is of another type than redis-state writes",
          "Another program has overwritten a key of redis-state: remove that key. If it had " +
            "state, restore the server's data from before; `redis-state doctor` lists the damage.")
      } else {
        (
          "a script met an entry that redis-state does not write",
          "Restore the server's data from before the damage; `redis-state doctor` lists the damage. " +
            "If it finds none, report this as a defect of redis-state.")
      }
    new FormatException(
      s"$what: $found: the server answers '${bare(message).stripSuffix(".")}'. $advice")
  }

  /** Stands for the name of a missing command that a script calls and the reply does not name. */
  val UnnamedInScript = "that a script calls"

  /** Returns the error for commands that a server lacks. */
  def lacking(
      what: String,
      commands: Seq[String],
      at: String = "the server"): ConfigException = {
    val one = commands.size == 1
    val names = commands.mkString(", ")
    val (found, them, it) =
      if (one) (s"the command $names: it is", "the command under its own name", "it")
      else (s"commands ($names): they are", "the commands under their own names", "them")
    new ConfigException(
      s"$what: $at lacks $found renamed or disabled there (rename-command), or a proxy or " +
        s"a Sentinel answers. Restore $them, or give the address of a server that has $it.")
  }

  private def advice(message: String): String =
    if (message.startsWith(protectedMode)) {
      "In protected mode the server accepts connections from its own machine only. Set a password on it, " +
        "or set protected-mode no if only trusted machines can reach it."
    } else if (isOfDatabase(message))
      "Give /0 at the end of the URL; a cluster has no other database."
    else {
      "A block is larger than the server's proto-max-bulk-len. Raise that limit (512mb is the " +
        "default), or make the rows smaller."
    }
}
