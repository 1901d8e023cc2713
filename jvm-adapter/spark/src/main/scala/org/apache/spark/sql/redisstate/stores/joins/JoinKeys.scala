package org.apache.spark.sql.redisstate.stores.joins

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.InternalException

/** Rows or counts of one side of a join, whose expiries are those of the join keys. */
private[redisstate] trait JoinRows {
  def id: StateStoreId

  /** Expiry that the batch gives to a new row. */
  def newExpiryS: Long

  /** Returns the expiry of a row that is there. */
  def expiryOf(key: UnsafeRow): Option[Long]

  /** Returns the number of rows of a join key, in a store of counts. */
  def countOf(key: UnsafeRow): Long

  /** Replaces the expiry of a row. */
  def renew(key: UnsafeRow, expiryS: Long): Unit

  /** Replaces the expiry of a row of a join key, in a store of rows. */
  def renew(key: UnsafeRow, index: Long, expiryS: Long): Unit
}

/**
 * Join keys of one partition that a task writes: all rows and counts of a key, on both sides, have one
 * expiry (docs/format.md, section 15). For one task thread.
 */
private[redisstate] final class JoinKeys {
  import JoinKeys._

  private val stores = mutable.HashMap.empty[String, JoinRows]
  private lazy val sides = Sides.map(side => new Side(storeOf(side + Counts), storeOf(side + Rows)))

  private def storeOf(name: String): JoinRows = stores.getOrElse(
    name,
    throw new InternalException(s"a task writes a join without its store $name"))

  /** Returns the expiry of a row that is added to a key; renews the key, if it would expire earlier. */
  def expiryOf(key: UnsafeRow): Long = {
    val wanted = sides.head.counts.newExpiryS
    val known = sides.iterator.map(_.counts.expiryOf(key)).find(_.nonEmpty).flatten
    if (known.exists(_ >= wanted)) known.get
    else {
      if (known.nonEmpty) sides.foreach(_.renew(key, wanted))
      wanted
    }
  }
}

private[redisstate] object JoinKeys {
  val Counts = "keyToNumValues"
  val Rows = "keyWithIndexToValue"

  /** Rows of state format 4, which has no counts. */
  val RowsByTime = "keyWithTsToValues"
  val Left = "left-"
  val Right = "right-"
  private val Sides = Seq(Left, Right)

  private final case class TaskOperator(task: Long, operator: StateStoreId)

  @GuardedBy("this") private val open = mutable.HashMap.empty[TaskOperator, JoinKeys]

  /** Adds a store to those of its task; the task opens all four before it writes. */
  def join(store: JoinRows): JoinKeys = {
    val task = Option(TaskContext.get()).getOrElse(
      throw new InternalException(s"a join of ${store.id} is written outside a task"))
    val place = TaskOperator(task.taskAttemptId(), store.id.copy(storeName = ""))
    val (keys, isNew) = synchronized {
      val begun = open.get(place).filterNot(_.stores.contains(store.id.storeName))
      val keys = begun.getOrElse(new JoinKeys)
      open(place) = keys
      keys.stores(store.id.storeName) = store
      (keys, begun.isEmpty)
    }
    if (isNew) task.addTaskCompletionListener[Unit](_ => synchronized(open.remove(place): Unit))
    keys
  }

  /** Stores of one side. */
  private final class Side(val counts: JoinRows, rows: JoinRows) {
    def renew(key: UnsafeRow, expiryS: Long): Unit = {
      val count = counts.countOf(key)
      if (count > 0) counts.renew(key, expiryS)
      (0L until count).foreach(rows.renew(key, _, expiryS))
    }
  }
}
