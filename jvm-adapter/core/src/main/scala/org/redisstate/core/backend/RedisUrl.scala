package org.redisstate.core.backend

import org.redisstate.core.errors.ConfigException

/** Where a server is: host without brackets, port, database number, whether TLS is spoken. */
final case class RedisUrl(host: String, port: Int, database: Int, tls: Boolean) {
  override def toString: String = {
    val shown = if (host.contains(':')) s"[$host]" else host
    s"${if (tls) "rediss" else "redis"}://$shown:$port/$database"
  }
}

/** Reads URLs as `redis_state/url.py` does. No message repeats the URL: it could hold a password. */
object RedisUrl {
  private val Example = "Give a URL such as redis://localhost:6379/0."
  private val Later =
    Set("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix")
  private val PortDefault = 6379
  private val Unwanted = """[\s\x00-\x1f\x7f\\]""".r
  private val Address = """(\[[^\[\]]*\]|[^:\[\]]*)(:.*)?""".r
  private val Name = """[0-9A-Za-z_.-]+""".r
  private val Ip6 = """[0-9A-Fa-f:.]+(%[0-9A-Za-z_.-]+)?""".r
  private val Database = """0|[1-9][0-9]{0,4}""".r

  /** @throws ConfigException with the part that is wrong */
  def parse(text: String): RedisUrl = {
    val separated = text.contains("://")
    val scheme =
      if (separated) text.takeWhile(_ != ':').toLowerCase
      else if (text.startsWith("unix:")) "unix"
      else ""
    // The scheme too is named only if it is one we know: without "://" it could be anything.
    if (Later(scheme)) {
      throw refused(
        s"$scheme:// is not supported by the JVM adapter of this release",
        "Use redis:// or rediss:// with the address of one server.")
    }
    if (scheme != "redis" && scheme != "rediss")
      throw refused("it does not begin with redis:// or rediss://")
    if (text.contains('@')) {
      throw refused(
        "it holds a user name or password, which Spark would show in its UI and event log",
        "Take the part before '@' out; give 'username' and 'password' or 'passwordFile'."
      )
    }
    if (Unwanted.findFirstIn(text).isDefined)
      throw refused("it holds a blank, a control character or a backslash")
    if (text.exists(c => c == '?' || c == '#')) {
      throw refused(
        "it has a part behind '?' or '#'",
        "Take it out; settings are options of their own.")
    }
    val (address, path) = text.drop(scheme.length + 3).span(_ != '/')
    val (host, port) = hostAndPort(address)
    RedisUrl(host, port, database(path.drop(1)), tls = scheme == "rediss")
  }

  private def hostAndPort(address: String): (String, Int) = address match {
    case Address(host, colonPort) =>
      val port = Option(colonPort).fold(PortDefault)(p => portOf(p.drop(1)))
      (hostOf(host), port)
    case _ => throw malformed
  }

  private def portOf(text: String): Int =
    if (text == "0" || text.isEmpty) throw refused("its port is missing behind ':' or is 0")
    else if (text.length <= 5 && text.forall(c => c >= '0' && c <= '9') && text.toInt <= 65535)
      text.toInt
    else throw malformed

  private def hostOf(text: String): String = {
    val bare = text.stripPrefix("[").stripSuffix("]")
    val good = if (text.startsWith("[")) Ip6.matches(bare) else Name.matches(bare)
    if (!good) throw refused("it has no host, or one with characters that no host name has")
    bare.toLowerCase
  }

  private def database(text: String): Int =
    if (text.isEmpty) 0
    else if (Database.matches(text)) text.toInt
    else throw refused("the part behind the address is not a database number such as /0")

  private def malformed: ConfigException =
    refused("its host is malformed or its port is not a number up to 65535")

  private def refused(found: String, advice: String = Example): ConfigException =
    new ConfigException(s"option 'url'; $found. $advice")
}
