package org.redisstate.core.store

import org.redisstate.core.local.Slice

/** Kind of change of a key in one version. */
sealed trait Change

object Change {
  case object Put extends Change

  /** Elements joined the list of a multi-value family. */
  case object Appended extends Change
  case object Removed extends Change
}

/** Changed rows of one family, one after the other; each key once. */
trait ChangeIterator {

  /**
   * Reads the next row into `key` and `value` and returns its kind of change; None at the end. A
   * removed row has no value.
   */
  def next(key: Slice, value: Slice): Option[Change]
}
