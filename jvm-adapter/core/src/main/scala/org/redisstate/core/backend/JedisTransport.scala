package org.redisstate.core.backend

import java.net.Socket
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{ConcurrentLinkedDeque, Semaphore, TimeUnit}
import javax.net.ssl.{SSLException, SSLParameters}

import scala.jdk.CollectionConverters._

import redis.clients.jedis.{
  ClientSetInfoConfig,
  Connection,
  DefaultJedisClientConfig,
  DefaultJedisSocketFactory,
  HostAndPort,
  JedisClientConfig,
  RedisProtocol
}
import redis.clients.jedis.commands.ProtocolCommand
import redis.clients.jedis.exceptions.{JedisConnectionException, JedisDataException, JedisException}

import org.redisstate.core.errors.{ConfigException, PermissionException}

/** A bounded pool of Jedis connections to one server, used below Jedis' own retries: a command goes out once for each `exchange`. */
final class JedisTransport(settings: ConnectionSettings, address: Address) extends Transport {
  import JedisTransport.{Link, Sockets}

  /** How messages name the server. */
  private val shown =
    if (settings.url.addresses == Seq(address)) settings.url.toString
    else s"$address of ${settings.url}"
  private val permits = new Semaphore(settings.connectionsMax, true)
  private val idle = new ConcurrentLinkedDeque[Link]
  @volatile private var closed = false

  /** Until there was one answer of a Redis, another protocol means that the address is wrong. */
  @volatile private var wasAnswered = false

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    if (!permits.tryAcquire(settings.socketTimeoutMs.toLong, TimeUnit.MILLISECONDS)) {
      throw new TransportException(
        s"no free connection to $shown within ${settings.socketTimeoutMs} ms",
        null)
    }
    try {
      val connection = Option(idle.pollFirst()).getOrElse(connect())
      val replies = exchangeOn(connection, commands)
      idle.addFirst(connection)
      if (closed) disconnectIdle()
      replies
    } finally permits.release()
  }

  override def close(): Unit = {
    closed = true
    disconnectIdle()
  }

  private def disconnectIdle(): Unit =
    Iterator.continually(idle.pollFirst()).takeWhile(_ != null).foreach(quietly)

  private def exchangeOn(connection: Link, commands: Seq[Command]): Seq[AnyRef] =
    try {
      connection.send(commands)
      val replies =
        connection.getMany(commands.size).asScala.iterator.map(JedisTransport.reply).toVector
      wasAnswered = true
      replies
    } catch {
      case e @ (_: JedisException | _: TransportException) =>
        quietly(connection)
        // What ended this one has most likely ended those, and each would cost a try to find out.
        disconnectIdle()
        if (isOtherProtocol(e)) throw noRedis(e)
        throw new TransportException(
          s"the connection to $shown failed: ${JedisTransport.reasonOf(e)}${hint(e)}",
          e)
      case e: Throwable =>
        // Replies may be on their way, which nobody else must take for theirs.
        quietly(connection)
        throw e
    }

  private def quietly(connection: Connection): Unit =
    try connection.disconnect()
    catch { case _: JedisException => () }

  private def connect(): Link = {
    val config = DefaultJedisClientConfig
      .builder()
      .protocol(RedisProtocol.RESP2)
      .connectionTimeoutMillis(settings.socketTimeoutMs)
      .socketTimeoutMillis(settings.socketTimeoutMs)
      .database(settings.url.database)
      .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
    settings.username.foreach(config.user)
    settings.currentPassword().foreach(config.password)
    if (settings.url.tls) {
      config.ssl(true).sslSocketFactory(PemTls.socketFactory(settings.tls))
      val parameters = new SSLParameters
      if (settings.tls.verifyHostname) parameters.setEndpointIdentificationAlgorithm("HTTPS")
      config.sslParameters(parameters)
    }
    try {
      val built = config.build()
      val sockets = new Sockets(new HostAndPort(address.host, address.port), built)
      val connection = new Link(sockets, built, settings.socketTimeoutMs.toLong)
      connection.connect()
      connection
    } catch {
      case e: JedisDataException => throw refused(e)
      case e: JedisConnectionException if JedisTransport.isTls(e) =>
        throw new ConfigException(
          s"the TLS handshake with $shown failed: ${JedisTransport.reasonOf(e)}. " +
            "Check that the port speaks TLS, and tls.caFile and the host name in the URL.",
          e
        )
      case e: JedisException if isOtherProtocol(e) => throw noRedis(e)
      case e: JedisException =>
        throw new TransportException(
          s"no connection to $shown: ${JedisTransport.reasonOf(e)}${hint(e)}",
          e)
    }
  }

  /** What a server says to AUTH and SELECT: waiting helps with some of it, the rest is for the user. */
  private def refused(e: JedisDataException): RuntimeException = {
    val message = Option(e.getMessage).getOrElse("")
    if (ReplyClass.of(message) == ReplyClass.Transient)
      new TransportException(message, e, isAnswer = true)
    else if (message.contains("DB index")) {
      new ConfigException(
        s"$shown: the server has no database ${settings.url.database}. " +
          "Name one that it has at the end of the URL.",
        e)
    } else if (message.contains("unknown command") && message.contains("HELLO"))
      ServerChecks.tooOld(shown, "a version older than 6")
    else if (message.startsWith("NOAUTH"))
      ServerChecks.noPassword(shown)
    else {
      new PermissionException(
        s"$shown: the server refuses the login: ${message.stripSuffix(".")}. " +
          "Check username and password (or passwordFile).",
        e)
    }
  }

  /** Until a Redis has answered, TLS at one end only looks like this. */
  private def hint(e: Throwable): String =
    if (settings.url.tls) " (does that port speak TLS? a redis:// URL is without TLS)"
    else if (!wasAnswered && JedisTransport.isHungUp(e))
      " (if the server speaks TLS only, use a rediss:// URL)"
    else ""

  private def isOtherProtocol(e: Throwable): Boolean =
    !wasAnswered && Option(e.getMessage).exists(_.startsWith("Unknown reply"))

  private def noRedis(e: Throwable) = new ConfigException(
    s"what answers at $shown is not Redis: it does not speak Redis's protocol. " +
      "Check host and port of the URL; if the server speaks TLS, use a rediss:// URL.",
    e
  )
}

private object JedisTransport {

  /** Knows the socket that it made last. */
  private final class Sockets(address: HostAndPort, config: JedisClientConfig)
      extends DefaultJedisSocketFactory(address, config) {
    @volatile var last: Socket = _

    override def createSocket(): Socket = {
      last = super.createSocket()
      last
    }
  }

  /** A connection that sends with a limit; it is connected once. */
  private final class Link(sockets: Sockets, config: JedisClientConfig, timeoutMs: Long)
      extends Connection(sockets, config) {
    private lazy val limit = new SendLimit(sockets.last, timeoutMs)

    def send(commands: Seq[Command]): Unit = limit.within(commands.iterator.map(_.bytes).sum) {
      commands.foreach(c => sendCommand(JedisTransport.protocol(c.name), c.args: _*))
      flush()
    }
  }

  private val commands = new java.util.concurrent.ConcurrentHashMap[String, ProtocolCommand]

  def protocol(name: String): ProtocolCommand = commands.computeIfAbsent(
    name,
    n => {
      val raw = n.getBytes(UTF_8)
      new ProtocolCommand { override def getRaw: Array[Byte] = raw }
    })

  def reply(value: Any): AnyRef = value match {
    case e: JedisDataException => ErrorReply(ReplyClass.bare(Option(e.getMessage).getOrElse("")))
    case list: java.util.List[_] => list.asScala.iterator.map(reply).toVector
    case other => other.asInstanceOf[AnyRef]
  }

  /** Jedis keeps what each address of a host answered beside the cause. */
  private def chain(e: Throwable): Seq[Throwable] =
    Iterator
      .iterate(e)(one => Option(one.getCause).orElse(one.getSuppressed.lastOption).orNull)
      .takeWhile(_ != null)
      .take(20)
      .toSeq

  /** What is at the bottom of it, or what we found ourselves, as a part of a sentence. */
  def reasonOf(e: Throwable): String = {
    val all = chain(e)
    val root = all.find(_.isInstanceOf[TransportException]).getOrElse(all.last)
    Option(root.getMessage).getOrElse(root.getClass.getSimpleName).stripSuffix(".")
  }

  /** Whether the other side closed the connection instead of an answer. */
  def isHungUp(e: Throwable): Boolean = chain(e).exists { one =>
    Option(one.getMessage).exists(text =>
      text.startsWith("Unexpected end of stream") || text.contains("reset") || text.contains(
        "Broken pipe"))
  }

  def isTls(e: Throwable): Boolean =
    chain(e).exists {
      case _: SSLException => true
      case _ => false
    }
}
