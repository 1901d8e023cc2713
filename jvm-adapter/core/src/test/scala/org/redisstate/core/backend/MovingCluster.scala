package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Random

/**
 * A cluster of two masters whose slots move while it is used: any call may bring the migration of a
 * slot that was asked for a step further, and one that has to wait brings it several.
 */
private[core] final class MovingCluster(
    cluster: RedisClusterProcesses,
    inner: Transport,
    random: Random)
    extends Transport {
  import MovingCluster._

  private var owners = Map.empty[Int, Int]
  private var moving: Option[Move] = None
  private var moved = 0

  /** Migrations that came to their end. */
  def migrations: Int = synchronized(moved)

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = synchronized {
    if (random.nextInt(StepEvery) == 0) step(commands)
    val replies =
      if (commands.head.name == "SCAN") Seq(everywhere(commands.head)) else inner.exchange(commands)
    // Some calls later the migration has gone on; where it is waited for, it comes to its end.
    if (replies.exists(mustWait)) (0 until StepsToWait).foreach(_ => if (moving.nonEmpty) step(Nil))
    replies
  }

  override def close(): Unit = inner.close()

  private def step(commands: Seq[Command]): Unit = moving match {
    case None =>
      commands.iterator.flatMap(Routing.slotOf).nextOption().foreach { slot =>
        val from = owners.getOrElse(slot, cluster.ownerOf(slot))
        cluster.beginMigration(slot, from, 1 - from)
        moving = Some(Move(slot, from))
      }
    case Some(Move(slot, from)) =>
      val keys = cluster.keysOf(slot, from)
      if (keys.nonEmpty) cluster.moveKeys(from, 1 - from, keys)
      else {
        cluster.endMigration(slot, 1 - from)
        owners += slot -> (1 - from)
        moving = None
        moved += 1
      }
  }

  /** The answer of a scan that is over at once, with the keys of all nodes. */
  private def everywhere(scan: Command): AnyRef = {
    val keys = inner.exchanges.flatMap { exchange =>
      Iterator
        .unfold(Option("0"))(_.map { cursor =>
          val (next, found) = page(exchange, scan, cursor)
          (found, Option(next).filter(_ != "0"))
        })
        .flatten
        .toVector
    }
    Seq[AnyRef]("0".getBytes(UTF_8), keys)
  }

  private def page(
      exchange: Seq[Command] => Seq[AnyRef],
      scan: Command,
      cursor: String): (String, Seq[Any]) =
    exchange(Seq(Command("SCAN", Command.bytes(cursor) +: scan.args.drop(1)))).head match {
      case Seq(next: Array[Byte], found: Seq[_]) => (new String(next, UTF_8), found)
      case other => throw new IllegalStateException(String.valueOf(other))
    }
}

private object MovingCluster {
  private final case class Move(slot: Int, from: Int)

  private val StepEvery = 6
  private val StepsToWait = 5

  private def mustWait(reply: AnyRef): Boolean = reply match {
    case ErrorReply(message) => ReplyClass.of(message) == ReplyClass.Transient
    case _ => false
  }
}
