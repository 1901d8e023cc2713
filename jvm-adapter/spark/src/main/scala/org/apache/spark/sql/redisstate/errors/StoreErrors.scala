package org.apache.spark.sql.redisstate.errors

import java.io.{PrintStream, PrintWriter}

import org.apache.spark.SparkException
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.errors._

/**
 * Repeats its message below the causes of its stack trace: many logs, and Python's `foreachBatch`,
 * end there.
 */
private[redisstate] final class StateStoreFailure(
    message: String,
    cause: RedisStateException,
    condition: String,
    parameters: Map[String, String])
    extends SparkException(message, cause, Some(condition), parameters) {
  override def printStackTrace(out: PrintStream): Unit = {
    super.printStackTrace(out)
    out.println(message)
  }

  override def printStackTrace(out: PrintWriter): Unit = {
    super.printStackTrace(out)
    out.println(message)
  }
}

/**
 * Our errors under the conditions that Spark's callers look for. The text is ours to its last word:
 * that of Spark's condition for a version that is not there ends with the advice to clear the
 * checkpoint, and whoever follows it throws the state away.
 */
private[redisstate] object StoreErrors {

  /** @param waysOn what to do, where that is known better than by what raised the error */
  def cannotLoad(id: StateStoreId, e: RedisStateException, waysOn: String = ""): Throwable = {
    val (condition, parameters) =
      if (isAbsent(e)) ("CANNOT_READ_STREAMING_STATE_FILE", Map("fileToRead" -> shown(id)))
      else ("UNCATEGORIZED", Map.empty[String, String])
    new StateStoreFailure(
      sentence(s"The state of ${shown(id)} was not loaded.", e, waysOn),
      e,
      s"CANNOT_LOAD_STATE_STORE.$condition",
      parameters)
  }

  /** Error of a loaded store, which reads and writes rows in Redis while the batch runs. */
  def cannotUse(id: StateStoreId, e: RedisStateException): Throwable =
    new StateStoreFailure(
      sentence(s"The state of ${shown(id)} could not be used.", e, ""),
      e,
      "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
      Map.empty)

  def cannotCommit(id: StateStoreId, e: Throwable): Throwable = e match {
    case ours: RedisStateException =>
      new StateStoreFailure(
        sentence(s"The state of ${shown(id)} was not committed.", ours, ""),
        ours,
        "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT",
        Map("providerClass" -> shown(id)))
    case _ => QueryExecutionErrors.failedToCommitStateFileError(shown(id), e)
  }

  /** True if Spark's callers may treat the error as a version whose files are missing. */
  private def isAbsent(e: RedisStateException): Boolean = e match {
    case _: StateLostException | _: FileLostException | _: VersionExpiredException | _: MarkerMissingException |
        _: CheckpointMovedException =>
      true
    case _ => false
  }

  private def sentence(attempted: String, e: RedisStateException, waysOn: String): String =
    Seq(attempted, e.getMessage, waysOn).filter(_.nonEmpty).mkString(" ")

  private def shown(id: StateStoreId): String = {
    val store =
      if (id.storeName == StateStoreId.DEFAULT_STORE_NAME) "" else s", store ${id.storeName}"
    s"operator ${id.operatorId}, partition ${id.partitionId}$store"
  }

  /** Error of a family whose rows were written with another encoding than the query reads. */
  def otherFamily(name: String, have: String, wanted: String): Throwable =
    new FormatException(
      s"the column family '$name' was written with $have, and the query needs $wanted. Nothing " +
        "was changed. Start a new checkpoint, or go back to the query that wrote this one.")

  /** Error of a family whose rows have other columns than the query. */
  def otherColumns(name: String, changes: String): Throwable =
    FormatException.ofColumns(changes, s"Rows of the column family '$name' do not fit.")

  /** Error of a family whose description names other columns than its spec. */
  def otherKeys(name: String): Throwable =
    new FormatException(
      s"the column family '$name' has keys without columns that the query needs: an earlier " +
        "redis-state wrote keys of Spark's join state format 4 without their event time after a " +
        "restart. Its rows are mixed up; nothing was changed. Start a new checkpoint.")

  /** Error of a family whose description lacks the event time of its keys. */
  def keyWithoutTime(name: String): Throwable =
    new FormatException(
      s"the column family '$name' is described without the event time of its keys, as an earlier redis-state did for Spark's join " +
        "state format 4, so its keys cannot be read. Run one batch of the query, then read the version that it commits.")

  /** Error of a task that was opening a version when Spark closed the provider. */
  def unloaded(id: StateStoreId, version: Long): RedisStateException = new UnavailableException(
    s"open version $version of $id: its provider was unloaded meanwhile, since another executor serves the partition or " +
      "the query ended. Spark runs the task again.")

  def negativeVersion(version: Long): Throwable =
    QueryExecutionErrors.unexpectedStateStoreVersion(version)
}
