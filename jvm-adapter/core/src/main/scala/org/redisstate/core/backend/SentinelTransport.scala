package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.atomic.AtomicReference

import org.redisstate.core.errors.ConfigException

/**
 * Transport to the master that sentinels name. The master is looked up again after each failed
 * connection, after each reply of a server that is not a master, and when replicas do not
 * acknowledge: they may follow another master by now, which a server that is cut off has not
 * learned. The caller sends again.
 *
 * @param service the name under which the sentinels watch the master
 */
final class SentinelTransport(settings: ConnectionSettings, service: String) extends Transport {
  import SentinelTransport._

  private val current = new AtomicReference[JedisTransport]
  @volatile private var closed = false

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    val master = Option(current.get).getOrElse(resolved())
    try {
      val replies = master.exchange(commands)
      if (replies.exists(isFromNoMaster) || commands.lazyZip(replies).exists(fallsShort))
        forget(master)
      replies
    } catch {
      case e: TransportException =>
        forget(master)
        throw e
    }
  }

  override def serverOf(key: String): String = settings.url.toString

  override def close(): Unit = {
    closed = true
    Option(current.getAndSet(null)).foreach(_.close())
  }

  /** Several threads may ask at once; the first answer stays, so that none waits for another's. */
  private def resolved(): JedisTransport = {
    val found = new JedisTransport(settings, askAll())
    try verifyRole(found)
    catch {
      case e: RuntimeException =>
        found.close()
        throw e
    }
    if (current.compareAndSet(null, found)) {
      if (closed) close()
      found
    } else {
      found.close()
      Option(current.get).getOrElse(resolved())
    }
  }

  private def forget(master: JedisTransport): Unit = {
    current.compareAndSet(master, null)
    master.close()
  }

  private def verifyRole(server: JedisTransport): Unit =
    server.exchange(Seq(Command("ROLE"))).head match {
      case Seq(role: Array[Byte], _*) if new String(role, UTF_8) == "master" => ()
      case ErrorReply(message) if isUnnamed(message) => ()
      case ErrorReply(message) =>
        throw new TransportException(message, null, isAnswer = true)
      case _ =>
        throw new TransportException(
          s"the server that the sentinels name for '$service' is not a master",
          null)
    }

  private def askAll(): Address = {
    val answers = settings.url.addresses.iterator.map(sentinel => ask(sentinel))
    var unknown = false
    var last: TransportException = null
    var other: NoSentinel = null
    while (answers.hasNext) {
      try answers.next() match {
          case Right(Some(address)) => return address
          case Right(None) => unknown = true
          case Left(failure) => last = failure
        }
      catch { case e: NoSentinel => other = e }
    }
    // One that may be asked again decides over one that never names a master.
    if (other != null && last == null) {
      throw new ConfigException(
        s"asking the sentinels for the master; ${other.getMessage}. Give the addresses of " +
          "Sentinels, or a redis:// URL for one server.")
    }
    if (unknown && last == null) {
      throw new ConfigException(
        s"${settings.url}: the sentinels watch no master named '$service'. " +
          "Put the name from their configuration (sentinel monitor NAME …) into the URL.")
    }
    throw new TransportException(
      s"no sentinel of ${settings.url} names a master" +
        Option(last).fold("")(e => s": ${e.getMessage}"),
      last,
      isAnswer = Option(last).exists(_.isAnswer))
  }

  private def ask(sentinel: Address): Either[TransportException, Option[Address]] =
    try {
      val open = anonymous(settings)
      askOnce(sentinel, open) match {
        case ErrorReply(m) if ReplyClass.of(m) == ReplyClass.Lacking =>
          throw new NoSentinel(sentinel)
        case ErrorReply(m) if ReplyClass.of(m) == ReplyClass.Permission =>
          address(askOnce(sentinel, settings.copy(url = open.url)))
        case reply => address(reply)
      }
    } catch { case e: TransportException => Left(e) }

  private def askOnce(sentinel: Address, as: ConnectionSettings): AnyRef = {
    val connection = new JedisTransport(as, sentinel)
    try connection.exchange(Seq(Command("SENTINEL", "get-master-addr-by-name", service))).head
    finally connection.close()
  }

  private def address(reply: AnyRef): Either[TransportException, Option[Address]] = reply match {
    case Seq(host: Array[Byte], port: Array[Byte]) =>
      Right(Some(Address(new String(host, UTF_8), new String(port, UTF_8).toInt)))
    case null => Right(None)
    case ErrorReply(message) if message.startsWith("IDONTKNOW") => Right(None)
    case ErrorReply(message) => Left(new TransportException(s"a sentinel answers $message", null))
    case _ => Left(new TransportException("a sentinel answers no address", null))
  }
}

private object SentinelTransport {

  /** Failure: the address lacks the commands of sentinels. */
  private final class NoSentinel(asked: Address)
      extends RuntimeException(
        s"$asked lacks the command SENTINEL: it is not a Sentinel, or the command was renamed")

  /** Returns whether the user may not ask for the role; such a user may still read and write. */
  private def isUnnamed(message: String): Boolean = {
    val found = ReplyClass.of(message)
    found == ReplyClass.Permission || found == ReplyClass.Lacking
  }

  private val NoMaster = Set("READONLY", "MASTERDOWN", "LOADING")

  private def fallsShort(command: Command, reply: AnyRef): Boolean = (command.name, reply) match {
    case ("WAIT", followed: java.lang.Long) => followed < number(command.args(0))
    case ("WAITAOF", Seq(_, followed: java.lang.Long)) => followed < number(command.args(1))
    case _ => false
  }

  private def number(text: Array[Byte]): Long = new String(text, UTF_8).toLong

  private def isFromNoMaster(reply: AnyRef): Boolean = reply match {
    case ErrorReply(message) => NoMaster(message.takeWhile(_ != ' '))
    case items: Seq[_] =>
      items.exists { case one: ErrorReply => isFromNoMaster(one); case _ => false }
    case _ => false
  }

  /** Sentinels have databases and users of their own; most ask for no password. */
  private def anonymous(settings: ConnectionSettings): ConnectionSettings = settings.copy(
    url = settings.url.copy(database = 0),
    username = None,
    password = None,
    passwordFile = None)
}
