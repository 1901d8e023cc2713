package org.redisstate.core.backend

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.UnavailableException

/** Deadlines of calls, also in a process that was stopped and resumed. */
class DeadlineSuite extends AnyFunSuite {
  import DeadlineSuite._

  test("a call that slept through its deadline has another one") {
    val clock = new Hand
    val transport = new Script(clock, Seq(Failure(HourMs), Failure(10), Answer))
    assert(backend(transport, clock).call("ping", Ping) == Seq("PONG"))
    assert(transport.left.isEmpty)
  }

  test("it has one more only once, however often it sleeps") {
    val clock = new Hand
    val transport = new Script(clock, Seq(Failure(HourMs), Failure(HourMs), Answer))
    assertThrows[UnavailableException](backend(transport, clock).call("ping", Ping))
    assert(transport.left == Seq(Answer))
  }

  test("a try that is slow and no more has no other deadline") {
    val clock = new Hand
    val transport = new Script(clock, Seq(Failure(AwakeMs), Answer))
    assertThrows[UnavailableException](backend(transport, clock).call("ping", Ping))
    assert(transport.left == Seq(Answer))
  }

  private def backend(transport: Transport, clock: Clock): RedisBackend =
    new RedisBackend(transport, DeadlineMs, clock, () => false, awakeMs = AwakeMs)
}

object DeadlineSuite {
  private val DeadlineMs = 1000L
  private val AwakeMs = 2000L
  private val HourMs = 3600L * 1000
  private val Ping = Seq(Command("PING"))

  private sealed trait Step

  /** The connection is lost after so many ms. */
  private final case class Failure(afterMs: Long) extends Step
  private case object Answer extends Step

  /** Time that passes where somebody waits, and nowhere else. */
  private final class Hand extends Clock {
    var nowMs = 0L
    override def sleep(ms: Long): Unit = nowMs += ms
  }

  private final class Script(clock: Hand, var left: Seq[Step]) extends Transport {
    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      val step = left.head
      left = left.tail
      step match {
        case Failure(afterMs) =>
          clock.nowMs += afterMs
          throw new TransportException("the connection was lost", null)
        case Answer => Seq("PONG")
      }
    }

    override def close(): Unit = ()
  }
}
