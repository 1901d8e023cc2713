package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{ConfigException, PermissionException}

/** What a server must be like to be trusted with state; looked at once for each pool. */
object ServerChecks {
  private val log = LoggerFactory.getLogger(getClass)
  private val VersionMin = (6, 2)
  private val Version = """(\d{1,6})\.(\d{1,6})""".r

  /** @throws ConfigException for a server that would lose state or is too old */
  def check(url: String, exchange: Seq[Command] => Seq[AnyRef]): Unit =
    exchange(Seq(Command("INFO"))).head match {
      case ErrorReply(message) if ReplyClass.of(message) == ReplyClass.Transient =>
        throw new TransportException(message, null)
      case ErrorReply(message) if message.startsWith("NOAUTH") =>
        throw new PermissionException(
          s"$url wants a password and none is configured. Set passwordFile (or password).")
      case ErrorReply(message) =>
        log.warn("{}: its settings could not be checked: {}", url: Any, message: Any)
      case bytes: Array[Byte] => judge(url, new String(bytes, UTF_8))
      case _ => ()
    }

  def tooOld(url: String, found: String): ConfigException =
    new ConfigException(
      s"checking the server; $url runs $found. Redis 6.2 or newer, or Valkey, is needed.")

  /**
   * @param text what the server answered to INFO
   * @throws ConfigException for a server that would lose state or is too old
   */
  def judge(url: String, text: String): Unit = {
    val info = parse(text)
    val version = info.getOrElse("redis_version", "0.0")
    val numbers = Version.findPrefixMatchOf(version).map(m => (m.group(1).toInt, m.group(2).toInt))
    if (!numbers.exists(Ordering[(Int, Int)].gteq(_, VersionMin)))
      throw tooOld(url, s"version $version")
    val policy = info.getOrElse("maxmemory_policy", "noeviction")
    if (policy.startsWith("allkeys")) {
      throw new ConfigException(s"$url has maxmemory-policy $policy and would evict state. " +
        "Set maxmemory-policy noeviction there.")
    }
    if (policy.startsWith("volatile")) {
      log.warn(s"$url has maxmemory-policy $policy: under memory pressure commits are repeated. noeviction is better.")
    }
    if (info.get("aof_enabled").contains("0") && info.get("rdb_last_save_time").isDefined) {
      log.info(s"$url keeps no append-only file: what it holds since its last RDB save is lost when it stops.")
    }
    if (info.get("role").contains("slave")) {
      throw new ConfigException(s"$url is a replica, which cannot be written. Name the master.")
    }
  }

  private def parse(info: String): Map[String, String] =
    info.linesIterator.map(_.split(":", 2)).collect { case Array(name, value) =>
      name -> value.trim
    }.toMap
}
