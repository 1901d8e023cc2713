package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.conf.SparkMinor
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.FamilyKind

/**
 * Until 4.1 Spark has no keys in the order of a timestamp, and asks for no range: keys in the order
 * of columns could serve one.
 */
private[redisstate] object EncoderShim {
  def supportsRangeScan(encoder: RocksDBKeyStateEncoder): Boolean =
    encoder.isInstanceOf[RangeKeyScanStateEncoder]

  def supportsDeleteRange(encoder: RocksDBKeyStateEncoder): Boolean = supportsRangeScan(encoder)

  def kindOf(spec: KeyStateEncoderSpec): FamilyKind =
    throw StateStoreErrors.unsupportedOperationException("the key encoder", spec.toString)

  def specOf(kind: FamilyKind, keySchema: StructType): KeyStateEncoderSpec =
    throw StateStoreErrors.unsupportedOperationException(
      s"a column family with the key encoder ${kind.name}",
      s"Spark ${SparkMinor.BuiltFor}: a later Spark wrote ${keySchema.fieldNames.mkString(", ")}")
}
