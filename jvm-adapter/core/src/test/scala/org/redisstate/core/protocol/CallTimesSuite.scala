package org.redisstate.core.protocol

import org.scalatest.funsuite.AnyFunSuite

/** Times of calls: their classes, as docs/format.md has them, and their sums. */
class CallTimesSuite extends AnyFunSuite {

  test("a class is twice as long as the one before, and the last one has no end") {
    val us = Seq(0L, 124L, 125L, 249L, 250L, 999L, 1000L, 4000L, 20000000L)
    assert(us.map(u => CallTimes.classOf(u * 1000)) == Seq(0, 0, 1, 1, 2, 3, 4, 6, 15))
  }

  test("calls that fail are counted, and those that wait for more are counted apart") {
    val times = new CallTimes
    assertThrows[IllegalStateException](times.opening(throw new IllegalStateException))
    times.timed(())
    times.timed((), waits = true)
    assert(times.openClasses.sum == 1)
    assert(times.durable.get == 1)
    assert(times.ns.get >= times.durableNs.get)
  }
}
