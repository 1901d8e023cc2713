package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.unsafe.Platform

import org.redisstate.core.format.{Family, MultiValue}
import org.redisstate.core.local.Slice

/**
 * Rows of one column family to stored keys and values and back (docs/format.md, section 4.2): the
 * bytes are those of Spark's RocksDB encoders, so that their order is Spark's too. For one thread;
 * the rows given back are reused. With Avro the bytes are Spark's as well.
 *
 * @param declared whether Spark gave the layout, and not a version's description
 */
private[redisstate] final class RowCodec(
    val layout: FamilyLayout,
    pool: EncoderPool,
    declared: Boolean = true) {
  import RowCodec._

  private val bare = layout.isBare
  private val isAvro = layout.encoding != RowEncoding.Plain
  private var taken: FamilyEncoders = _
  private val keyRow = new UnsafeRow(layout.keySchema.length)
  private val valueRow = new UnsafeRow(layout.valueSchema.length)
  private var keyBuffer = new Array[Byte](256)
  private var valueBuffer = new Array[Byte](256)

  def family: Family = layout.family

  def isDeclaredAs(other: FamilyLayout): Boolean = declared && layout == other

  /** True if the keys have the same columns, as far as the descriptions name them. */
  def hasKeysOf(other: FamilyLayout): Boolean =
    family.keySchema == other.family.keySchema ||
      ((declared || layout.namesKey) &&
        layout.keySchema.map(_.dataType) == other.keySchema.map(_.dataType))

  /** Returns the expensive encoders to the pool; this codec takes others if it is used again. */
  def giveBack(): Unit =
    if (taken != null) {
      pool.giveBack(layout, taken)
      taken = null
    }

  private def encoders: FamilyEncoders = {
    if (taken == null) {
      if (!declared && !layout.namesKey) throw StoreErrors.keyWithoutTime(family.name)
      taken = pool.take(layout)
    }
    taken
  }

  def key: Array[Byte] = keyBuffer
  def value: Array[Byte] = valueBuffer
  def supportsPrefixScan: Boolean = !bare && encoders.keys.supportPrefixKeyScan
  def supportsRangeScan: Boolean = !bare && EncoderShim.supportsRangeScan(encoders.keys)
  def supportsDeleteRange: Boolean = !bare && EncoderShim.supportsDeleteRange(encoders.keys)

  /** Length of the stored key that `key` now holds. */
  def encodeKey(row: UnsafeRow): Int =
    if (!bare) store(encoders.toEncode.encodeKey(row))
    else {
      val length = FamilyBytes + VersionBytes + row.getSizeInBytes
      if (keyBuffer.length < length) keyBuffer = new Array[Byte](length * 2)
      putFamily()
      keyBuffer(FamilyBytes) = RowVersion
      row.writeToMemory(keyBuffer, Platform.BYTE_ARRAY_OFFSET + FamilyBytes + VersionBytes)
      length
    }

  /** An encoded key without the family id, for a bound of a range. */
  def encodeBound(row: UnsafeRow): Array[Byte] =
    if (bare) throw new IllegalStateException("no bounds without order")
    else encoders.toEncode.encodeKey(row)

  /** The encoded key of a prefix, without the family id. */
  def encodePrefixBound(row: UnsafeRow): Array[Byte] = encoders.toEncode.encodePrefixKey(row)

  /** Length of the stored bucketing bytes of a prefix that `key` now holds. */
  def encodePrefix(row: UnsafeRow): Int = store(encodePrefixBound(row))

  /**
   * Length of the bytes that `value` now holds: those of a value, or those of a list with this one
   * element.
   */
  def encodeValue(row: UnsafeRow): Int =
    if (family.multiValue) hold(encodeElements(Array(row)))
    else if (isAvro) hold(encoders.avro.encodeValue(row))
    else {
      val length = VersionBytes + row.getSizeInBytes
      if (valueBuffer.length < length) valueBuffer = new Array[Byte](length * 2)
      valueBuffer(0) = RowVersion
      row.writeToMemory(valueBuffer, Platform.BYTE_ARRAY_OFFSET + VersionBytes)
      length
    }

  /** Length of the list of a multi-value family that `value` now holds. */
  def encodeList(rows: Array[UnsafeRow]): Int = hold(encodeElements(rows))

  def decodeKey(stored: Slice): UnsafeRow = {
    val from = stored.offset + FamilyBytes
    if (bare) pointTo(keyRow, stored.array, from, stored.length - FamilyBytes)
    else {
      encoders.decodeKey(java.util.Arrays.copyOfRange(
        stored.array,
        from,
        stored.offset + stored.length))
    }
  }

  /** The value; of a list its first element, as Spark's RocksDB provider does; null where that is empty. */
  def decodeValue(stored: Slice): UnsafeRow =
    if (!family.multiValue) toValue(stored.array, stored.offset, stored.length)
    else {
      val rows = decodeList(stored)
      if (rows.hasNext) rows.next() else null
    }

  /**
   * Decodes a value into a row of its own, unless the value is Avro or a list's. Spark's join state
   * format 1 keeps one row while it reads another.
   */
  def decodeOwnValue(stored: Slice): UnsafeRow =
    if (family.multiValue || isAvro) decodeValue(stored)
    else {
      val row = new UnsafeRow(layout.valueSchema.length)
      pointTo(row, stored.array, stored.offset, stored.length)
    }

  /** The elements of a list; each row is valid until the next. */
  def decodeList(stored: Slice): Iterator[UnsafeRow] =
    MultiValue.elements(stored.array, stored.offset, stored.length).map { bytes =>
      toValue(bytes, 0, bytes.length)
    }

  private def toValue(bytes: Array[Byte], offset: Int, length: Int): UnsafeRow =
    if (!isAvro) pointTo(valueRow, bytes, offset, length)
    else encoders.avro.decodeValue(java.util.Arrays.copyOfRange(bytes, offset, offset + length))

  private def encodeElements(rows: Array[UnsafeRow]): Array[Byte] =
    MultiValue.encode(rows.map { row =>
      if (isAvro) encoders.avro.encodeValue(row)
      else {
        val element = new Array[Byte](VersionBytes + row.getSizeInBytes)
        element(0) = RowVersion
        row.writeToMemory(element, Platform.BYTE_ARRAY_OFFSET + VersionBytes)
        element
      }
    })

  private def hold(bytes: Array[Byte]): Int = {
    valueBuffer = bytes
    bytes.length
  }

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

  /** The least byte string above all that begin with `prefix`; None where there is no such. */
  def above(prefix: Array[Byte]): Option[Array[Byte]] = {
    val last = prefix.lastIndexWhere(_ != -1)
    if (last < 0) None
    else {
      val bound = java.util.Arrays.copyOf(prefix, last + 1)
      bound(last) = (bound(last) + 1).toByte
      Some(bound)
    }
  }
}
