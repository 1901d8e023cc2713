package org.redisstate.core.backend

import java.io.IOException
import java.net.Socket
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{ConcurrentLinkedDeque, Semaphore, TimeUnit}
import javax.net.ssl.{SSLException, SSLParameters}

import scala.jdk.CollectionConverters._

import redis.clients.jedis.{
  ClientSetInfoConfig,
  CommandArguments,
  Connection,
  DefaultJedisClientConfig,
  DefaultJedisSocketFactory,
  HostAndPort,
  JedisClientConfig,
  Protocol
}
import redis.clients.jedis.commands.ProtocolCommand
import redis.clients.jedis.util.RedisOutputStream
import redis.clients.jedis.exceptions.{JedisConnectionException, JedisDataException, JedisException}

import org.redisstate.core.errors.{ConfigException, PermissionException}

/**
 * A bounded pool of Jedis connections to one server, used below Jedis' own retries: a command goes
 * out once for each `exchange`.
 */
final class JedisTransport(settings: ConnectionSettings, address: Address) extends Transport {
  import JedisTransport.{Link, Sockets}

  /** Name of the server in messages. */
  private val shown =
    if (settings.url.addresses == Seq(address)) settings.url.toString
    else s"$address of ${settings.url}"
  private val permits = new Semaphore(settings.connectionsMax, true)
  private val idle = new ConcurrentLinkedDeque[Link]
  @volatile private var closed = false

  /**
   * True if a Redis has ever answered; until then another protocol means that the address is wrong.
   */
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
      if (commands.lazyZip(replies).exists(JedisTransport.endsIt)) quietly(connection)
      else idle.addFirst(connection)
      if (closed) disconnectIdle()
      replies.foreach(rejectRedirect)
      replies
    } finally permits.release()
  }

  override def serverOf(key: String): String = shown

  override def close(): Unit = {
    closed = true
    disconnectIdle()
  }

  private def disconnectIdle(): Unit =
    Iterator.continually(idle.pollFirst()).takeWhile(_ != null).foreach(quietly)

  private def exchangeOn(connection: Link, commands: Seq[Command]): Seq[AnyRef] =
    try {
      connection.send(commands)
      val replies = connection.receive(commands.size)
      wasAnswered = true
      replies
    } catch {
      case e @ (_: JedisException | _: TransportException) =>
        quietly(connection)
        // What ended this one has most likely ended those, and each would cost a try to find out.
        disconnectIdle()
        if (!wasAnswered) throw notConnected(e)
        throw new TransportException(
          s"the connection to $shown failed: ${JedisTransport.reasonOf(e)}${hint(e)}",
          e,
          isHungUp = JedisTransport.isHungUp(e))
      case e: Throwable =>
        // Replies may be on their way, which nobody else must take for theirs.
        quietly(connection)
        throw e
    }

  /** A client of one server does not follow to another node. */
  private def rejectRedirect(reply: AnyRef): Unit = reply match {
    case ErrorReply(message)
        if settings.url.topology != Topology.Cluster &&
          (message.startsWith("MOVED ") || message.startsWith("ASK ")) =>
      throw new ConfigException(
        s"$shown is a node of a cluster, and another node has the key " +
          s"('${message.takeWhile(_ != ' ')}'). Give the cluster's URL: redis+cluster://host:port.")
    case _ => ()
  }

  private def quietly(connection: Connection): Unit =
    try connection.disconnect()
    catch { case _: JedisException => () }

  private def connect(): Link = {
    val config = DefaultJedisClientConfig
      .builder()
      .connectionTimeoutMillis(settings.socketTimeoutMs)
      .socketTimeoutMillis(settings.socketTimeoutMs)
      .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
    if (settings.url.tls) {
      config.ssl(true).sslSocketFactory(PemTls.socketFactory(settings.tls))
      val parameters = new SSLParameters
      if (settings.tls.verifyHostname) parameters.setEndpointIdentificationAlgorithm("HTTPS")
      config.sslParameters(parameters)
    }
    val connection =
      try {
        val built = config.build()
        val sockets = new Sockets(new HostAndPort(address.host, address.port), built)
        val made = new Link(sockets, built, settings.socketTimeoutMs.toLong)
        made.connect()
        made
      } catch { case e: JedisException => throw notConnected(e) }
    logIn(connection)
    connection
  }

  /** Logs in without HELLO, which proxies lack; a new connection speaks RESP2 anyway. */
  private def logIn(connection: Link): Unit = {
    val password = settings.currentPassword().map { password =>
      Command("AUTH", settings.username.toSeq :+ password: _*)
    }
    val database = Option.when(settings.url.database > 0) {
      Command("SELECT", settings.url.database.toString)
    }
    val commands = password.toSeq ++ database
    if (commands.nonEmpty) {
      commands.zip(exchangeOn(connection, commands)).foreach {
        case (command, ErrorReply(message)) =>
          quietly(connection)
          throw refused(command, message)
        case _ => ()
      }
    }
  }

  private def notConnected(e: Throwable): RuntimeException =
    if (JedisTransport.isTls(e)) {
      new ConfigException(
        s"the TLS handshake with $shown failed: ${JedisTransport.reasonOf(e)}. " +
          "Check that the port speaks TLS, and tls.caFile and the host name in the URL.",
        e
      )
    } else if (isOtherProtocol(e)) {
      new ConfigException(
        s"the program that listens at $shown is not Redis: it does not speak the Redis protocol. " +
          "Check host and port of the URL; if the server speaks TLS, use a rediss:// URL.",
        e
      )
    } else {
      new TransportException(
        s"no connection to $shown: ${JedisTransport.reasonOf(e)}${hint(e)}",
        e,
        isHungUp = JedisTransport.isHungUp(e))
    }

  /**
   * Returns the error for a refused AUTH or SELECT: some refusals end by waiting, the user has to
   * solve the others.
   */
  private def refused(command: Command, message: String): RuntimeException =
    ReplyClass.of(message) match {
      case ReplyClass.Transient => new TransportException(message, null, isAnswer = true)
      case _ if ReplyClass.isOfDatabase(message) =>
        new ConfigException(s"$shown: the server has no database ${settings.url.database}. " +
          "Give a lower database number at the end of the URL, such as /0.")
      case _ if message.contains("wrong number of arguments for 'auth'") =>
        ServerChecks.tooOld(shown, "a version older than 6, which has no users")
      case _ if ReplyClass.wantsLogin(message) => ServerChecks.noPassword(shown)
      case ReplyClass.Permission =>
        new PermissionException(
          s"$shown: the server refuses the login: ${message.stripSuffix(".")}. " +
            "Check username and password (or passwordFile).")
      case _ => ReplyClass.failure(s"connect to $shown", message, command.name)
    }

  /**
   * Returns advice for a failed connection: until a Redis has answered, TLS at one end only looks
   * like this.
   */
  private def hint(e: Throwable): String =
    if (settings.url.tls) " (does that port speak TLS? a redis:// URL is without TLS)"
    else if (!wasAnswered && JedisTransport.isHungUp(e))
      " (if the server speaks TLS only, use a rediss:// URL)"
    else ""

  private def isOtherProtocol(e: Throwable): Boolean =
    !wasAnswered && Option(e.getMessage).exists(_.startsWith("Unknown reply"))
}

private object JedisTransport {

  /** Socket factory that remembers its last socket. */
  private final class Sockets(address: HostAndPort, config: JedisClientConfig)
      extends DefaultJedisSocketFactory(address, config) {
    @volatile var last: Socket = _

    override def createSocket(): Socket = {
      last = super.createSocket()
      last
    }
  }

  /**
   * Connection with a time limit for writes; it connects once. It writes past Jedis: after a failed
   * write Jedis would read, and keep to itself, what the server sent before it closed the
   * connection.
   */
  private final class Link(sockets: Sockets, config: JedisClientConfig, timeoutMs: Long)
      extends Connection(sockets, config) {
    private lazy val limit = new SendLimit(sockets.last, timeoutMs)
    private lazy val out = new RedisOutputStream(sockets.last.getOutputStream)
    private var lastWords: ErrorReply = _

    def send(commands: Seq[Command]): Unit =
      try limit.within(commands.iterator.map(_.bytes).sum) {
          commands.foreach { c =>
            val all = new CommandArguments(JedisTransport.protocol(c.name))
            c.args.foreach(all.add(_: Array[Byte]))
            Protocol.sendCommand(out, all)
          }
          try out.flush()
          catch { case e: IOException => throw new JedisConnectionException(e) }
        }
      catch {
        case e: JedisConnectionException =>
          lastWords = pending().getOrElse(throw e)
      }

    /**
     * Reads replies; a reply that ends the connection also stands for the missing ones after it.
     */
    def receive(count: Int): Vector[AnyRef] = Vector.fill(count) {
      if (lastWords != null) lastWords
      else {
        val one =
          try JedisTransport.reply(readProtocolWithCheckingBroken())
          catch { case e: JedisDataException => JedisTransport.reply(e) }
        one match {
          case error @ ErrorReply(message) if ReplyClass.endsConnection(message) =>
            lastWords = error
          case _ => ()
        }
        one
      }
    }

    private def pending(): Option[ErrorReply] =
      try {
        sockets.last.setSoTimeout(1)
        val bytes = new Array[Byte](LastWordsBytes)
        val read = sockets.last.getInputStream.read(bytes)
        val lines = new String(bytes, 0, math.max(read, 0), UTF_8).linesIterator
        lines.filter(_.startsWith("-")).map(_.drop(1)).filter(
          ReplyClass.endsConnection).nextOption().map(ErrorReply(_))
      } catch { case _: IOException => None }
  }

  private val LastWordsBytes = 1 << 16

  /**
   * Returns whether the connection is unusable after this reply: a refused EXEC leaves it inside
   * the transaction.
   */
  def endsIt(command: Command, reply: AnyRef): Boolean = reply match {
    case ErrorReply(message) => command.name == "EXEC" || ReplyClass.endsConnection(message)
    case _ => false
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

  /** Returns the root cause, or our own finding, as a part of a sentence. */
  def reasonOf(e: Throwable): String = {
    val all = chain(e)
    val root = all.find(_.isInstanceOf[TransportException]).getOrElse(all.last)
    Option(root.getMessage).getOrElse(root.getClass.getSimpleName).stripSuffix(".")
  }

  /** Returns whether the server closed the connection instead of answering. */
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
