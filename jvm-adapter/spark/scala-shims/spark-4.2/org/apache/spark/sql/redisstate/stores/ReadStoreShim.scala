package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.{
  KeyStateEncoderSpec,
  ReadStateStore,
  StateStoreErrors
}
import org.apache.spark.sql.types.StructType

/** Spark 4.2 does not register column families on read-only stores. */
private[redisstate] trait ReadStoreShim extends ReadStateStore {
  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit =
    throw StateStoreErrors.unsupportedOperationException("registerColFamily", "a store to write")
}
