package org.apache.spark.sql.redisstate.move.engine

import org.apache.spark.SparkConf
import org.apache.spark.serializer.{KryoSerializer, Serializer}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

import org.redisstate.core.format.MultiValue
import org.redisstate.core.local.Expiry

/**
 * A key of a store and what it holds. A reader uses one for all its rows; they are valid until it
 * is asked for the next.
 */
final class StateEntry {

  /** Position of the family in its [[StoreSpec]]. */
  var family: Int = 0
  var key: UnsafeRow = _

  /** Null where the family keeps lists. */
  var value: UnsafeRow = _

  /** The values of a list in their order; else null. */
  var list: Array[UnsafeRow] = _

  /** Expiry of the row in seconds since 1970; `Expiry.Never` for a row that does not expire. */
  var expiryS: Long = Expiry.Never
}

/**
 * A row on its way between partitions through Spark's shuffle.
 *
 * @param key bytes of the UnsafeRow
 * @param value bytes of the UnsafeRow, or of a list as `MultiValue` encodes it
 * @param expiryS as of a [[StateEntry]]
 */
final case class MovedRow(
    family: Int,
    key: Array[Byte],
    value: Array[Byte],
    expiryS: Long = Expiry.Never)

/** Packs the rows of a store for a shuffle, and back. For one thread. */
private[redisstate] final class RowPacker(spec: StoreSpec) {
  private val entry = new StateEntry
  private val keys = spec.families.map(f => new UnsafeRow(f.keySchema.length)).toArray
  private val values = spec.families.map(f => new UnsafeRow(f.valueSchema.length)).toArray

  def pack(entry: StateEntry): MovedRow = {
    val value =
      if (entry.list == null) entry.value.getBytes.clone()
      else MultiValue.encode(entry.list.map(_.getBytes))
    MovedRow(entry.family, entry.key.getBytes.clone(), value, entry.expiryS)
  }

  /** Valid until the next. */
  def unpack(row: MovedRow): StateEntry = {
    entry.family = row.family
    entry.expiryS = row.expiryS
    entry.key = keys(row.family)
    point(entry.key, row.key)
    if (spec.families(row.family).multiValue) {
      val columns = spec.families(row.family).valueSchema.length
      entry.value = null
      entry.list = MultiValue.elements(row.value, 0, row.value.length).map { bytes =>
        val element = new UnsafeRow(columns)
        point(element, bytes)
        element
      }.toArray
    } else {
      entry.list = null
      entry.value = values(row.family)
      point(entry.value, row.value)
    }
    entry
  }

  private def point(row: UnsafeRow, bytes: Array[Byte]): Unit =
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length)
}

private[redisstate] object RowPacker {

  /** Serializer of packed rows in a shuffle: Java's own writes class names beside each row. */
  def serializer: Serializer =
    new KryoSerializer(new SparkConf(false).registerKryoClasses(Array(classOf[MovedRow])))
}
