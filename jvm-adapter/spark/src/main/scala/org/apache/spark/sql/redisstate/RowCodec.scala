package org.apache.spark.sql.redisstate

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

import org.redisstate.core.format.{Family, FamilyKind}
import org.redisstate.core.local.Slice

/**
 * Rows of one column family to stored keys and values and back (docs/format.md, section 4.2): the bytes are those of Spark's RocksDB
 * encoders. For one thread; the rows given back are reused.
 */
private[redisstate] final class RowCodec(
    val family: Family,
    val keySchema: StructType,
    val valueSchema: StructType,
    spec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean) {
  import RowCodec._

  private val encoder: Option[RocksDBKeyStateEncoder] = spec match {
    case _: NoPrefixKeyStateEncoderSpec => None
    case other =>
      Some(other.toEncoder(new UnsafeRowDataEncoder(other, valueSchema), useColumnFamilies))
  }
  private val keyRow = new UnsafeRow(keySchema.length)
  private val valueRow = new UnsafeRow(valueSchema.length)
  private var keyBuffer = new Array[Byte](256)
  private var valueBuffer = new Array[Byte](256)

  def key: Array[Byte] = keyBuffer
  def value: Array[Byte] = valueBuffer

  /** Length of the stored key that `key` now holds. */
  def encodeKey(row: UnsafeRow): Int = encoder match {
    case None =>
      val length = FamilyBytes + VersionBytes + row.getSizeInBytes
      if (keyBuffer.length < length) keyBuffer = new Array[Byte](length * 2)
      putFamily()
      keyBuffer(FamilyBytes) = RowVersion
      row.writeToMemory(keyBuffer, Platform.BYTE_ARRAY_OFFSET + FamilyBytes + VersionBytes)
      length
    case Some(spark) => store(spark.encodeKey(row))
  }

  /** Length of the stored bucketing bytes of a prefix that `key` now holds. */
  def encodePrefix(row: UnsafeRow): Int = encoder match {
    case Some(spark) => store(spark.encodePrefixKey(row))
    case None => throw StateStoreErrors.unsupportedOperationException(
        "prefixScan",
        "a store without prefix key")
  }

  /** Length of the value that `value` now holds. */
  def encodeValue(row: UnsafeRow): Int = {
    val length = VersionBytes + row.getSizeInBytes
    if (valueBuffer.length < length) valueBuffer = new Array[Byte](length * 2)
    valueBuffer(0) = RowVersion
    row.writeToMemory(valueBuffer, Platform.BYTE_ARRAY_OFFSET + VersionBytes)
    length
  }

  def decodeKey(stored: Slice): UnsafeRow = encoder match {
    case None =>
      pointTo(keyRow, stored.array, stored.offset + FamilyBytes, stored.length - FamilyBytes)
    case Some(spark) =>
      val from = stored.offset + FamilyBytes
      spark.decodeKey(java.util.Arrays.copyOfRange(
        stored.array,
        from,
        stored.offset + stored.length))
  }

  def decodeValue(stored: Slice): UnsafeRow =
    pointTo(valueRow, stored.array, stored.offset, stored.length)

  private def store(encoded: Array[Byte]): Int = {
    val length = FamilyBytes + encoded.length
    if (keyBuffer.length < length) keyBuffer = new Array[Byte](length * 2)
    putFamily()
    System.arraycopy(encoded, 0, keyBuffer, FamilyBytes, encoded.length)
    length
  }

  private def putFamily(): Unit = {
    keyBuffer(0) = (family.id >>> 8).toByte
    keyBuffer(1) = family.id.toByte
  }
}

private[redisstate] object RowCodec {
  val FamilyBytes = 2
  val VersionBytes = 1
  val RowVersion: Byte = 0

  def pointTo(row: UnsafeRow, bytes: Array[Byte], offset: Int, length: Int): UnsafeRow = {
    row.pointTo(
      bytes,
      Platform.BYTE_ARRAY_OFFSET.toLong + offset + VersionBytes,
      length - VersionBytes)
    row
  }

  def kindOf(spec: KeyStateEncoderSpec): (FamilyKind, Seq[Int]) = spec match {
    case _: NoPrefixKeyStateEncoderSpec => (FamilyKind.Plain, Nil)
    case p: PrefixKeyScanStateEncoderSpec => (FamilyKind.Prefix, Seq(p.numColsPrefixKey))
    case other =>
      throw StateStoreErrors.unsupportedOperationException(
        other.getClass.getSimpleName,
        "this release of redis-state, which has no families in key order")
  }

  def specOf(family: Family, keySchema: StructType): KeyStateEncoderSpec = family.kind match {
    case FamilyKind.Prefix => PrefixKeyScanStateEncoderSpec(keySchema, family.params.head)
    case _ => NoPrefixKeyStateEncoderSpec(keySchema)
  }

  def family(
      id: Int,
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      internal: Boolean): Family = {
    val (kind, params) = kindOf(spec)
    Family(id, name, kind, params, keySchema.json, valueSchema.json, multiValue = false, internal)
  }
}
