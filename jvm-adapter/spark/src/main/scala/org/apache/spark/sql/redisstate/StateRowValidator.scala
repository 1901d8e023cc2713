package org.apache.spark.sql.redisstate

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.types.StructType

import org.redisstate.core.local.{Layer, RowValidator}

/**
 * Checks the rows that come from Redis against the operator's schema. A row whose offsets point outside of its bytes would make Spark
 * read foreign memory. Families beside the default one have other schemas: their keys and values are only measured.
 */
private[redisstate] final class StateRowValidator(
    keySchema: StructType,
    valueSchema: StructType,
    plainKeys: Boolean,
    storeConf: StateStoreConf)
    extends RowValidator {
  private val keyRow = ThreadLocal.withInitial[UnsafeRow](() => new UnsafeRow(keySchema.length))
  private val valueRow = ThreadLocal.withInitial[UnsafeRow](() => new UnsafeRow(valueSchema.length))
  private val checkValue = storeConf.formatValidationCheckValue

  override def check(
      bytes: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      valueOffset: Int,
      valueLength: Int): String = {
    val rowBytes = valueLength - RowCodec.VersionBytes
    if (rowBytes < 0 || rowBytes % 8 != 0 || bytes(valueOffset) != RowCodec.RowVersion) {
      return s"a value of $valueLength bytes is no UnsafeRow of encoding version 0"
    }
    if (Layer.familyOf(bytes, keyOffset) != 0) return null
    val keyBytes = keyLength - RowCodec.FamilyBytes - RowCodec.VersionBytes
    val keyFault =
      if (!plainKeys) null
      else if (keyBytes < 0 || keyBytes % 8 != 0) "the key is no UnsafeRow"
      else {
        fault(
          RowCodec.pointTo(
            keyRow.get,
            bytes,
            keyOffset + RowCodec.FamilyBytes,
            keyLength - RowCodec.FamilyBytes),
          keySchema)
      }
    if (keyFault != null || !checkValue) keyFault
    else fault(RowCodec.pointTo(valueRow.get, bytes, valueOffset, valueLength), valueSchema)
  }

  private def fault(row: UnsafeRow, schema: StructType): String =
    UnsafeRowUtils.validateStructuralIntegrityWithReason(row, schema).orNull
}
