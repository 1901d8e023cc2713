package org.redisstate.core.store

import java.util.concurrent.atomic.AtomicReference

/**
 * Life cycle of a write session, as one table: the operations allowed in each state. Thread-safe,
 * since an abort may come from any thread.
 */
private[store] final class LifeCycle {
  import LifeCycle._

  private val state = new AtomicReference[State](Updating)

  def is(wanted: State): Boolean = state.get eq wanted

  /** @return whether the operation is allowed now; the state has followed it then */
  def follow(operation: Operation): Boolean = {
    val now = state.get
    Table.get((now, operation)) match {
      case Some(next) => state.compareAndSet(now, next) || follow(operation)
      case None => false
    }
  }
}

private[store] object LifeCycle {
  sealed trait State
  case object Updating extends State
  case object Committing extends State
  case object Committed extends State
  case object Aborted extends State

  sealed trait Operation
  case object BeginCommit extends Operation
  case object EndCommit extends Operation
  case object Abort extends Operation

  private val Table: Map[(State, Operation), State] = Map(
    (Updating, BeginCommit) -> Committing,
    (Committing, EndCommit) -> Committed,
    (Updating, Abort) -> Aborted,
    (Committing, Abort) -> Aborted)
}
