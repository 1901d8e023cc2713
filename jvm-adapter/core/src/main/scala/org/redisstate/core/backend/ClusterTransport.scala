package org.redisstate.core.backend

import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import redis.clients.jedis.util.JedisClusterCRC16

import org.redisstate.core.errors.ConfigException

/**
 * The transport to a cluster: each command goes to the owner of its slot, a transaction as a whole.
 * `MOVED` and `ASK` are followed at once, a few times; other transient errors are returned to the
 * caller, who waits and sends again.
 */
final class ClusterTransport(settings: ConnectionSettings) extends Transport {
  import ClusterTransport._
  import Routing._

  private val nodes = new ConcurrentHashMap[Address, JedisTransport]

  /** Replaced as a whole or changed slot by slot; `null` when it has to be asked for. */
  @volatile private var table: Array[Address] = _

  /** The last table, which stays while the nodes have to be asked for; empty before the first. */
  @volatile private var lastTable = Array.empty[Address]

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = lookingAgain {
    val replies = new Array[AnyRef](commands.size)
    var open = split(commands).map(part => NodeRequest(part, owner(part.slot), asking = false))
    var redirects = 0
    while (open.nonEmpty) {
      open = open.groupBy(_.to).toSeq.flatMap { case (to, steps) =>
        send(to, steps, replies, follow = redirects < RedirectsMax)
      }
      redirects += 1
    }
    if (replies.exists(isDown)) table = null
    replies.toSeq
  }

  /** Returns one exchange for each master: each has its own memory and settings. */
  override def exchanges: Seq[Seq[Command] => Seq[AnyRef]] =
    owners().filter(_ != null).distinct.toSeq.map { address => commands =>
      lookingAgain(node(address).exchange(commands))
    }

  override def serverOf(key: String): String = {
    val slot = JedisClusterCRC16.getSlot(Command.bytes(key))
    lastTable.lift(slot).flatMap(Option(_)).fold(settings.url.toString)(address =>
      s"$address of ${settings.url}")
  }

  /**
   * Runs an exchange; after a failed connection, looks up the nodes again before the next exchange.
   */
  private def lookingAgain(exchange: => Seq[AnyRef]): Seq[AnyRef] =
    try exchange
    catch {
      case e: TransportException =>
        table = null
        throw e
    }

  override def close(): Unit = {
    nodes.values.asScala.foreach(_.close())
    nodes.clear()
  }

  /** Sends the parts and returns those that have to be sent to another node. */
  private def send(
      to: Address,
      steps: Seq[NodeRequest],
      replies: Array[AnyRef],
      follow: Boolean): Seq[NodeRequest] = {
    val sent = steps.map(step =>
      if (step.asking) asked(step.part.commands) else step.part.commands)
    val answers = node(to).exchange(sent.flatten)
    val ends = sent.iterator.map(_.size).scanLeft(0)(_ + _).drop(1)
    steps.zip(ends.toSeq).flatMap { case (step, end) =>
      val own = answers.slice(end - step.part.commands.size, end)
      redirect(own, to) match {
        case Some(next) if follow && !(next.ask && mustWait(step.part)) =>
          if (!next.ask) remember(next)
          Some(NodeRequest(step.part, next.to, next.ask))
        case _ =>
          own.iterator.map(reply => explained(reply, step)).zipWithIndex.foreach {
            case (reply, i) => replies(step.part.at + i) = reply
          }
          None
      }
    }
  }

  private def explained(reply: AnyRef, step: NodeRequest): AnyRef = reply match {
    case ErrorReply(message) if message.startsWith("TRYAGAIN") =>
      val slot = step.part.slot.fold("")(n => s"slot $n, ")
      ErrorReply(s"$message ($slot${if (step.asking) "importing" else "asked"} node ${step.to})")
    case other => other
  }

  private def owner(slot: Option[Int]): Address = {
    val known = owners()
    slot match {
      case Some(n) =>
        Option(known(n)).getOrElse {
          throw new TransportException(s"no node of ${settings.url} serves slot $n", null)
        }
      case None =>
        known.find(_ != null).getOrElse {
          throw new TransportException(s"no node of ${settings.url} serves any slot", null)
        }
    }
  }

  private def remember(moved: Redirect): Unit = Option(table).foreach { known =>
    val changed = known.clone()
    changed(moved.slot) = moved.to
    table = changed
    lastTable = changed
  }

  private def owners(): Array[Address] = Option(table).getOrElse {
    // Any of them will do; those known from before may be the only ones that are left.
    val known = Random.shuffle((settings.url.addresses ++ nodes.keySet.asScala).distinct)
    val failures = mutable.ArrayBuffer.empty[TransportException]
    val found = known.iterator.flatMap { address =>
      try Some(ask(address))
      catch {
        case e: TransportException =>
          failures += e
          None
      }
    }.nextOption()
    val fresh = found.getOrElse {
      throw new TransportException(
        s"no node of ${settings.url} answers: ${failures.last.getMessage}",
        failures.last,
        isAnswer = failures.last.isAnswer)
    }
    // From here on another thread whose connection fails may set it to null.
    table = fresh
    lastTable = fresh
    retireAllBut(fresh)
    fresh
  }

  private def ask(address: Address): Array[Address] =
    node(address).exchange(Seq(Command("CLUSTER", "SLOTS"))).head match {
      case ErrorReply(message) if message.contains("cluster support disabled") =>
        throw new ConfigException(
          s"${settings.url}: $address is not a node of a cluster. Use a redis:// URL for one " +
            "server.")
      case ErrorReply(message) if isFinal(message) =>
        val what = s"asking $address for the nodes of the cluster"
        throw ReplyClass.failure(what, message, "CLUSTER")
      case reply => Routing.owners(reply, address)
    }

  /** Nodes that left the cluster, or only follow now, keep no connections here. */
  private def retireAllBut(known: Array[Address]): Unit = {
    val wanted = known.toSet
    nodes.keySet.asScala.filterNot(wanted).foreach(gone =>
      Option(nodes.remove(gone)).foreach(_.close()))
  }

  private def node(address: Address): JedisTransport =
    nodes.computeIfAbsent(address, new JedisTransport(settings, _))
}

private[core] object ClusterTransport {
  private final case class NodeRequest(part: Routing.Together, to: Address, asking: Boolean)

  private[core] val RedirectsMax = 5

  private def mustWait(part: Routing.Together): Boolean =
    part.commands.exists(command => Script.Undeclared.exists(_.isRunBy(command)))

  private def isFinal(message: String): Boolean = {
    val found = ReplyClass.of(message)
    found == ReplyClass.Permission || found == ReplyClass.Lacking
  }

  private def isDown(reply: AnyRef): Boolean = reply match {
    case ErrorReply(message) => message.startsWith("CLUSTERDOWN") || message.startsWith("READONLY")
    case items: Seq[_] => items.exists { case one: ErrorReply => isDown(one); case _ => false }
    case _ => false
  }
}
