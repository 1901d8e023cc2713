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

  /** Of a family whose description named other columns than its spec. */
  def otherKeys(name: String): Throwable =
    new FormatException(
      s"the column family '$name' has keys without columns that the query wants: an earlier redis-state wrote keys of Spark's join " +
        "state format 4 without their event time after a restart. Its rows are mixed up; nothing was changed. Start a new checkpoint.")

  /** Of a family that nobody has declared. */
  def keyWithoutTime(name: String): Throwable =
    new FormatException(
      s"the column family '$name' is described without the event time of its keys, as an earlier redis-state did for Spark's join " +
        "state format 4, so its keys cannot be read. Let the query run one batch, and read the version that it commits.")

  def negativeVersion(version: Long): Throwable =
    QueryExecutionErrors.unexpectedStateStoreVersion(version)
}
