package org.redisstate.core

import org.redisstate.core.backend.{
  Clock,
  ConnectionSettings,
  RedisBackend,
  RedisUrl,
  TlsSettings,
  Transports
}

/** Connections of tests to a server without users or TLS. */
object TestConnection {
  def settings(
      url: String,
      socketTimeoutMs: Int = 5000,
      deadlineMs: Long = 5000,
      connectionsMax: Int = 4): ConnectionSettings = ConnectionSettings(
    RedisUrl.parse(url),
    None,
    None,
    None,
    TlsSettings(None, None, None, verifyHostname = true),
    socketTimeoutMs,
    deadlineMs,
    connectionsMax)

  /** Returns a backend with one connection, which its caller closes. */
  def backend(url: String): RedisBackend = {
    val one = settings(url, connectionsMax = 1)
    new RedisBackend(Transports.to(one), one.deadlineMs, Clock.System, () => false)
  }
}
