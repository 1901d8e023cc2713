package org.redisstate.core.model

import java.util.concurrent.{ArrayBlockingQueue, ConcurrentHashMap, TimeUnit}

import scala.collection.mutable
import scala.util.Random

import org.redisstate.core.backend.{Command, Transport, TransportException}

/** Fate of one exchange in the network. */
sealed trait Fate

object Fate {
  case object Deliver extends Fate
  case object LoseRequest extends Fate
  case object LoseReply extends Fate

  /** The client sees a lost connection now; the server gets the commands some steps later. */
  case object DeliverLate extends Fate
}

/** An actor was killed: nothing of it happens any more. */
final class Killed extends RuntimeException

/**
 * Runs actors on threads of their own, one at a time: each waits before every exchange with the
 * server until it is let through, in an order and with a fate that the seed decides. So a schedule
 * is a sequence of single server calls, and repeats with its seed.
 */
final class Scheduler(random: Random, server: Transport, faults: Boolean, count: String => Unit) {
  import Scheduler._

  private final class Actor(val name: String, body: Transport => Unit) {
    val go = new ArrayBlockingQueue[Grant](1)
    val turn = new ArrayBlockingQueue[Boolean](1)
    @volatile var failure: Option[Throwable] = None

    private val transport: Transport = new Transport {
      override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
        turn.put(true)
        take(go) match {
          case Kill => throw new Killed
          case Let(fate) => deliver(commands, fate)
        }
      }
      override def close(): Unit = ()
    }

    val thread = new Thread(
      () => {
        try
          take(go) match {
            case Kill => ()
            case Let(_) => body(transport)
          }
        catch {
          case _: Killed => ()
          case e: Throwable => failure = Some(e)
        }
        turn.put(false)
      },
      s"actor-$name")
    thread.setDaemon(true)
    thread.start()
  }

  private val living = mutable.ArrayBuffer.empty[Actor]
  private val late = mutable.ArrayBuffer.empty[(Int, Seq[Command])]
  private var step = 0

  def running: Int = living.size

  def start(name: String)(body: Transport => Unit): Unit = living += new Actor(name, body)

  /** Runs one exchange of one actor; returns the failure of an actor that ended with a failure. */
  def next(): Option[Throwable] = {
    step += 1
    val due = late.filter(_._1 <= step)
    late --= due
    due.foreach { case (_, commands) => server.exchange(commands) }
    if (living.isEmpty) None
    else {
      val actor = living(random.nextInt(living.size))
      actor.go.put(if (faults && random.nextInt(60) == 0) { count("killed"); Kill }
      else Let(fate()))
      if (take(actor.turn)) None
      else {
        living -= actor
        actor.failure
      }
    }
  }

  /** Delivers the commands that are still on their way. */
  def flush(): Unit = {
    late.foreach { case (_, commands) => server.exchange(commands) }
    late.clear()
  }

  private def fate(): Fate =
    if (!faults) Fate.Deliver
    else random.nextInt(20) match {
      case 0 => Fate.LoseRequest
      case 1 => Fate.LoseReply
      case 2 => Fate.DeliverLate
      case _ => Fate.Deliver
    }

  private def deliver(commands: Seq[Command], fate: Fate): Seq[AnyRef] = fate match {
    case Fate.Deliver => server.exchange(commands)
    case Fate.LoseRequest =>
      count("lost requests")
      throw new TransportException("request lost", null)
    case Fate.LoseReply =>
      count("lost replies")
      server.exchange(commands)
      throw new TransportException("reply lost", null)
    case Fate.DeliverLate =>
      count("late deliveries")
      late += ((step + 1 + random.nextInt(12), commands))
      throw new TransportException("connection lost, request under way", null)
  }
}

object Scheduler {
  private sealed trait Grant
  private case object Kill extends Grant
  private final case class Let(fate: Fate) extends Grant
  private val HangS = 60L

  private def take[A](queue: ArrayBlockingQueue[A]): A =
    Option(queue.poll(HangS, TimeUnit.SECONDS)).getOrElse(throw new IllegalStateException(
      "an actor hangs"))

  /** Named counters of a whole run. */
  final class Counters {
    private val values = new ConcurrentHashMap[String, Integer]
    def add(name: String): Unit = { values.merge(name, 1, (a, b) => a + b); () }
    def apply(name: String): Int = values.getOrDefault(name, 0)
    override def toString: String = values.toString
  }
}
