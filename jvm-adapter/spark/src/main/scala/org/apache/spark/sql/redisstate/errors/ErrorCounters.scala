package org.apache.spark.sql.redisstate.errors

import org.apache.spark.TaskContext

import org.redisstate.core.errors.{FencedException, RedisStateException, StateLostException}

/** The errors whose number is kept beside what instances count (docs/format.md, section 9). */
private[redisstate] object ErrorCounters {

  /** Its name there; None for the others. */
  def of(e: RedisStateException): Option[String] = e match {
    case _: FencedException => Some("fenced")
    case lost: StateLostException if !lost.isPurged => Some("lost")
    case _ => None
  }

  /** Whether this task runs a batch: a state reader that asks for what is gone says nothing of the query. */
  def isOfBatch: Boolean =
    Option(TaskContext.get()).exists(_.getLocalProperty("streaming.sql.batchId") != null)
}
