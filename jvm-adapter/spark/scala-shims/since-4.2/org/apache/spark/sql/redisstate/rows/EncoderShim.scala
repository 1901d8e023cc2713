package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.FamilyKind

/** Since 4.2 Spark has ranges, and keys in the order of a timestamp. */
private[redisstate] object EncoderShim {
  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean = encoder.supportsRangeScan

  def supportsDeleteRange(encoder: RocksDBKeyStateEncoder): Boolean = encoder.supportsDeleteRange

  def kindOf(spec: KeyStateEncoderSpec): FamilyKind =
    if (spec.isInstanceOf[TimestampAsPrefixKeyStateEncoderSpec]) FamilyKind.TimestampPrefix
    else FamilyKind.TimestampPostfix

  def specOf(kind: FamilyKind, keySchema: StructType): KeyStateEncoderSpec =
    if (kind == FamilyKind.TimestampPrefix) TimestampAsPrefixKeyStateEncoderSpec(keySchema)
    else TimestampAsPostfixKeyStateEncoderSpec(keySchema)
}
