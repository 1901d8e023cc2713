package org.apache.spark.sql.redisstate.errors

import org.apache.spark.TaskContext

import org.redisstate.core.errors.{
  FencedException,
  FileLostException,
  RedisStateException,
  StateLostException
}

/** Errors that are counted beside the figures of instances (docs/format.md, section 9). */
private[redisstate] object ErrorCounters {

  /** Its name there; None for the others. */
  def of(e: RedisStateException): Option[String] = e match {
    case _: FencedException => Some("fenced")
    case lost: StateLostException if !lost.isPurged => Some("lost")
    case _: FileLostException => Some("lost")
    case _ => None
  }

  /**
   * Returns whether this task runs a batch: a state reader that asks for a lost version says
   * nothing about the query.
   */
  def isOfBatch: Boolean =
    Option(TaskContext.get()).exists(_.getLocalProperty("streaming.sql.batchId") != null)
}
