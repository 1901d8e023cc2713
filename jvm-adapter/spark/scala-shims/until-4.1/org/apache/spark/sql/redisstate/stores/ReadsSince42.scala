package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** Methods of Spark's read stores since 4.2. */
private[redisstate] trait ReadsSince42 extends ReadStateStore {
  def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow]
  def keyExists(key: UnsafeRow, colFamilyName: String): Boolean
  def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair]

  def allColumnFamilyNames: Set[String]

  def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit =
    throw StateStoreErrors.unsupportedOperationException("registerColFamily", "a store to write")
}

/** Methods of Spark's write stores since 4.2. */
private[redisstate] trait WritesSince42 extends StateStore {
  def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit
}
