package org.apache.spark.sql.redisstate.move.engine

import org.apache.spark.sql.execution.streaming.state.{
  StateStore,
  StateStoreErrors,
  StateStoreProvider
}

/** Until 4.1 no provider of Spark's opens a store at a version as if it held nothing. */
private[redisstate] object EmptyStore {
  val IsSparks: Boolean = false

  def at(provider: StateStoreProvider, version: Long): StateStore =
    throw StateStoreErrors.unsupportedOperationException(
      s"a store that begins with version $version",
      provider.toString)
}
