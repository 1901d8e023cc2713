package org.redisstate.core.backend

import java.net.URI
import java.nio.file.{Files, Path}

import org.redisstate.core.errors.ConfigException

/**
 * Where the server is and how long to wait for it. Equal settings share one pool; nothing here prints a password.
 *
 * @param deadlineMs how long one operation may be tried again
 */
final case class ConnectionSettings(
    url: RedisUrl,
    username: Option[String],
    password: Option[Secret],
    passwordFile: Option[String],
    tls: TlsSettings,
    socketTimeoutMs: Int,
    deadlineMs: Long,
    connectionsMax: Int) {

  /** The password as it is now: a file is read again at each connect, so that it can be rotated. */
  def currentPassword(): Option[String] = passwordFile match {
    case Some(file) =>
      try Some(Files.readString(Path.of(file)).stripLineEnd)
      catch {
        case e: java.io.IOException =>
          throw new ConfigException(
            s"the password file $file cannot be read. Check that it exists " +
              "on the driver and on every executor.",
            e)
      }
    case None => password.map(_.reveal)
  }
}

final case class TlsSettings(
    caFile: Option[String],
    certFile: Option[String],
    keyFile: Option[String],
    verifyHostname: Boolean)

/** Text that no `toString` shows. */
final class Secret(val reveal: String) {
  override def toString: String = "*****"
  override def hashCode: Int = reveal.hashCode
  override def equals(other: Any): Boolean = other match {
    case that: Secret => that.reveal == reveal
    case _ => false
  }
}

final case class RedisUrl(host: String, port: Int, database: Int, tls: Boolean) {
  override def toString: String = s"${if (tls) "rediss" else "redis"}://$host:$port/$database"
}

object RedisUrl {
  private val Schemes = "redis:// and rediss://"

  def parse(text: String): RedisUrl = {
    if (text.contains('@')) {
      throw new ConfigException(
        "the option url holds user information, which Spark shows in its UI and " +
          "event log. Take it out of the URL and set username and passwordFile (or password).")
    }
    val uri =
      try new URI(text)
      catch { case _: java.net.URISyntaxException => bad(text, "it is not a URL") }
    val tls = uri.getScheme match {
      case "redis" => false
      case "rediss" => true
      case other =>
        bad(text, s"the scheme '$other' is not supported by this release ($Schemes are)")
    }
    if (uri.getHost == null) bad(text, "it names no host")
    val path = Option(uri.getPath).getOrElse("").stripPrefix("/")
    if (!path.forall(_.isDigit) || path.length > 5)
      bad(text, "what follows the host must be the number of a database")
    val port = if (uri.getPort < 0) 6379 else uri.getPort
    RedisUrl(
      uri.getHost.stripPrefix("[").stripSuffix("]"),
      port,
      if (path.isEmpty) 0 else path.toInt,
      tls)
  }

  private def bad(text: String, found: String): Nothing =
    throw new ConfigException(
      s"the option url is '$text': $found. Write redis://host:port/database.")
}
