package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{ConfigException, PermissionException}

/**
 * Checks of a server's version, role and settings, before it is trusted with state; done once for
 * each pool.
 */
object ServerChecks {
  private val log = LoggerFactory.getLogger(getClass)
  private val Checking = "checking the server"
  private val VersionMin = (6, 2)
  private val SaidMax = 256
  private val said = ConcurrentHashMap.newKeySet[String]()
  private val Version = """(\d{1,6})\.(\d{1,6})""".r

  /**
   * @param durability what commits will wait for
   * @param asksLimits whether the user may see settings; a refusal is an entry in the server's ACL LOG
   * @throws ConfigException for a server that would lose state, is too old or lacks commands
   */
  def check(
      url: String,
      durability: Durability,
      asksLimits: Boolean,
      exchange: Seq[Command] => Seq[AnyRef]): Unit = {
    val trial = ServerNeeds.trial
    val asked = if (asksLimits) ServerNeeds.AskLimits else Nil
    val replies = exchange((Command("INFO") +: trial) ++ asked)
    val warnings = replies.head match {
      case ErrorReply(message) if ReplyClass.of(message) == ReplyClass.Transient =>
        throw new TransportException(message, null, isAnswer = true)
      case ErrorReply(message) if ReplyClass.wantsLogin(message) =>
        throw noPassword(url)
      case ErrorReply(message) =>
        log.warn("{}: its settings could not be checked: {}", url: Any, message: Any)
        Nil
      case bytes: Array[Byte] =>
        val settings = () => exchange(Seq(Durability.FileSettings)).head
        judge(url, new String(bytes, UTF_8), durability, settings)
      case _ => Nil
    }
    val absent = ServerNeeds.absent(replies.slice(1, trial.size + 1))
    if (absent.nonEmpty) throw ReplyClass.lacking(Checking, absent, url)
    val limits = ServerNeeds.settingsIn(replies.drop(trial.size + 1))
    (warnings ++ ServerNeeds.warnings(url, limits)).foreach(warn)
  }

  /** A job has several connections to a server, and many queries; the log gets each sentence once. */
  private def warn(sentence: String): Unit = {
    if (said.size >= SaidMax) said.clear()
    if (said.add(sentence)) log.warn(sentence)
  }

  def noPassword(url: String): PermissionException =
    new PermissionException(
      s"$url requires a password and none is configured. Set passwordFile (or password).")

  def tooOld(url: String, found: String): ConfigException =
    new ConfigException(
      s"checking the server; $url runs $found. Redis 6.2 or newer, or Valkey, is needed.")

  /**
   * @param text what the server answered to INFO
   * @param settings asks for the answer to [[Durability.FileSettings]], which is needed of older servers
   * @return what is allowed and may cost state or time all the same, a sentence each
   * @throws ConfigException for a server that would lose state or is too old
   */
  def judge(
      url: String,
      text: String,
      durability: Durability,
      settings: () => AnyRef): Seq[String] = {
    val info = parse(text)
    if (info.get("redis_mode").contains("sentinel")) {
      throw new ConfigException(s"$Checking; $url is a Sentinel, which holds no state. Use a " +
        "redis+sentinel:// URL, with the name of the master after the port.")
    }
    val version = info.getOrElse("redis_version", "0.0")
    val numbers = Version
      .findPrefixMatchOf(version)
      .fold((0, 0))(m => (m.group(1).toInt, m.group(2).toInt))
    if (isBefore(numbers, VersionMin)) throw tooOld(url, s"version $version")
    val policy = info.getOrElse("maxmemory_policy", "noeviction")
    if (policy.startsWith("allkeys")) {
      throw new ConfigException(s"$url has maxmemory-policy $policy and would evict state. Set " +
        "maxmemory-policy noeviction on that server.")
    }
    if (info.get("role").contains("slave")) {
      throw new ConfigException(s"$url is a replica, which takes no writes. Give the address of " +
        "its master.")
    }
    val keepsFile = !info.get("aof_enabled").contains("0")
    if (durability.aof && !keepsFile)
      throw new ConfigException(Durability.noFile(Checking, s"$url has appendonly no"))
    if (durability.aof && isBefore(numbers, Durability.WaitAofSince))
      Durability.checkSettings(Checking, settings(), s"$url, which runs version $version,")
    val warnings = Seq(
      Option.when(policy.startsWith("volatile")) {
        s"$url has maxmemory-policy $policy: when memory is short, commits have to be repeated; " +
          "noeviction is better"
      },
      Option.when(!keepsFile) {
        s"$url keeps no append-only file: when it stops, every write since its last RDB save is " +
          "lost"
      },
      info.get("connected_slaves").flatMap(_.toIntOption).flatMap(
        aboutReplicas(url, _, durability.replicas))
    )
    warnings.flatten
  }

  private def aboutReplicas(url: String, there: Int, wanted: Int): Option[String] =
    if (there < wanted) {
      Some(
        s"$url has $there replicas, and durability=replicas:$wanted waits for $wanted: " +
          "commits fail until that many are connected")
    } else {
      Option.when(there > 0 && wanted == 0) {
        s"$url has replicas, but commits do not wait for them: a fail-over loses the commits " +
          "that the new master had not received; durability=replicas:1 prevents that"
      }
    }

  private def isBefore(version: (Int, Int), least: (Int, Int)): Boolean =
    Ordering[(Int, Int)].lt(version, least)

  private def parse(info: String): Map[String, String] =
    info.linesIterator.map(_.split(":", 2)).collect { case Array(name, value) =>
      name -> value.trim
    }.toMap
}
