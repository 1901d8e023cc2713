package org.apache.spark.sql.redisstate.stores

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** Stores that running tasks of this executor have opened, by task and operator. */
private[redisstate] object TaskStores {

  /** Tasks are told apart by identity. */
  private final case class Place(task: TaskContext, operator: Long, store: String)

  private val opened = new ConcurrentHashMap[Place, RedisReads]

  /** Registers the store that the task of this thread opened last, until the task ends. */
  def note(id: StateStoreId, store: RedisReads): Unit =
    Option(TaskContext.get()).foreach { task =>
      val place = Place(task, id.operatorId, id.storeName)
      if (opened.put(place, store) == null) {
        task.addTaskCompletionListener[Unit] { _ =>
          opened.remove(place)
          ()
        }
      }
    }

  /** Returns the store that the task of this thread has opened for an operator. */
  def find(operator: Long, store: String): Option[RedisReads] =
    Option(TaskContext.get()).flatMap(task => Option(opened.get(Place(task, operator, store))))
}
