package org.redisstate.core.store.previews

import org.scalatest.funsuite.AnyFunSuite

/** Estimates of how many changes a preview may send. */
class ChangeCostSuite extends AnyFunSuite {
  private val WorkNs = 2000000L

  test("many changes raise and lower the estimate") {
    val cost = new ChangeCost
    val before = cost.changesIn(WorkNs)
    cost.learn(10000, 10000L * 10000)
    val dear = cost.changesIn(WorkNs)
    assert(dear < before / 2)
    (1 to 20).foreach(_ => cost.learn(10000, 10000L * 300))
    assert(cost.changesIn(WorkNs) > before)
  }

  test("few changes lower the estimate, and never raise it") {
    val cost = new ChangeCost
    val before = cost.changesIn(WorkNs)
    cost.learn(0, WorkNs)
    cost.learn(10, WorkNs)
    assert(cost.changesIn(WorkNs) == before)
    // The first preview of a process runs code that is not compiled yet.
    cost.learn(10000, 10000L * 10000)
    (1 to 20).foreach(_ => cost.learn(1000, 1000L * 600))
    assert(cost.changesIn(WorkNs) > WorkNs / 700)
  }
}
