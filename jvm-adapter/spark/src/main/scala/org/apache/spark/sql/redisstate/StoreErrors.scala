package org.apache.spark.sql.redisstate

import org.apache.spark.SparkException
import org.apache.spark.sql.errors.QueryExecutionErrors

import org.redisstate.core.errors.{FormatException, RedisStateException}

/** Our errors under the conditions that Spark's callers look for; our kind and message stay in the text. */
private[redisstate] object StoreErrors {

  def cannotLoad(store: String, e: RedisStateException): Throwable =
    new SparkException(
      errorClass = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE",
      messageParameters =
        Map("fileToRead" -> s"the state of $store (${e.getMessage}); the version does not exist"),
      cause = e
    )

  def cannotCommit(store: String, e: Throwable): Throwable =
    QueryExecutionErrors.failedToCommitStateFileError(
      e match {
        case ours: RedisStateException => s"$store (${ours.getMessage})"
        case _ => store
      },
      e)

  /** A family whose rows would be read in a way in which they were not written. */
  def otherFamily(name: String, have: String, wanted: String): Throwable =
    new FormatException(
      s"the column family '$name' was written with $have, and the query wants $wanted. Nothing was " +
        "changed. Start a new checkpoint, or go back to the query that wrote this one.")

  def negativeVersion(version: Long): Throwable =
    QueryExecutionErrors.unexpectedStateStoreVersion(version)
}
