package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** Spark 4.0 writes lists one value at a time. */
private[redisstate] trait WriteStoreShim extends WritesSince42 {
  def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
  def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit
}
