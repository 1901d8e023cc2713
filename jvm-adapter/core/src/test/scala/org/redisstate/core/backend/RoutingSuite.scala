package org.redisstate.core.backend

import org.scalatest.funsuite.AnyFunSuite

/** Commands that stay together when they are routed to a cluster. */
class RoutingSuite extends AnyFunSuite {
  private val commit =
    Seq(Command("MULTI"), Command("EVAL", "return 1", "1", "{a}:m"), Command("EXEC"))

  test("the waits behind a transaction go where it goes") {
    val waits = Seq(Command("WAIT", "1", "100"), Command("CONFIG", "GET", "append*"))
    val read = Command("HGET", "{b}:m", "l")
    val parts = Routing.split((commit ++ waits) :+ read)
    assert(parts.map(_.commands) == Seq(commit ++ waits, Seq(read)))
    assert(parts.map(_.at) == Seq(0, 5))
    assert(parts.map(_.slot) == Seq(Routing.slotOf(commit(1)), Routing.slotOf(read)))
  }
}
