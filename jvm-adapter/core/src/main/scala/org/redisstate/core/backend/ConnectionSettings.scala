package org.redisstate.core.backend

import java.nio.file.{Files, Path}

import org.redisstate.core.errors.ConfigException

/**
 * Address of the server, credentials and time limits. Equal settings share one pool; no method
 * prints a password.
 *
 * @param deadlineMs how long one operation may be tried again
 * @param durability what commits wait for
 */
final case class ConnectionSettings(
    url: RedisUrl,
    username: Option[String],
    password: Option[Secret],
    passwordFile: Option[String],
    tls: TlsSettings,
    socketTimeoutMs: Int,
    deadlineMs: Long,
    connectionsMax: Int,
    durability: Durability = Durability.None) {

  /** Current password. A file is read at each connect, so that the password can be rotated. */
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
