package org.redisstate.core.store

import org.jetbrains.lincheck.datastructures.ManagedStrategyGuaranteeKt.forClasses
import org.jetbrains.lincheck.datastructures.ModelCheckingOptions

/**
 * Steps two threads through the operations of a class, in many orders: Lincheck makes a few random
 * scenarios of the operations that are marked in the class, and tries for each of them so many
 * schedules. What they return has to be what one thread after the other gets.
 */
private[store] object Interleavings {
  private val isLong = sys.env.get("REDIS_STATE_LONG").contains("1")

  /**
   * The first schedule waits until all classes are prepared: on a busy machine longer than
   * Lincheck's 10 s.
   */
  private val ScheduleMaxMs = 300000L

  /** Enough to find the mutants of docs/reliability.md. */
  private val Schedules = 150

  /** Rows do not change: no thread is stopped within them. */
  private val Atomic = "org.redisstate.core.format.RowBlock"

  /**
   * @param perThread operations that each thread does
   * @param scenarios how many to make, in the short form
   */
  def check(operations: Class[_], perThread: Int, scenarios: Int): Unit = {
    val options = new ModelCheckingOptions()
      .iterations(if (isLong) 10 * scenarios else scenarios)
      .invocationsPerIteration(if (isLong) 2000 else Schedules)
      .threads(2)
      .actorsPerThread(perThread)
      .actorsBefore(0)
      .actorsAfter(1)
      .minimizeFailedScenario(false)
      .addGuarantee(forClasses(Atomic).allMethods().ignore())
    options.`invocationTimeout$lincheck`(ScheduleMaxMs).check(operations)
  }
}
