package org.apache.spark.sql.redisstate.rows

import java.nio.ByteOrder

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

/**
 * Checks encoded rows against a schema by the rules of Spark's `UnsafeRowUtils`. Those take more
 * time than all else that a load does with a row, so what is sound at first sight is not given to
 * them: the look is at least as strict as they are, and where it doubts, Spark decides. It differs
 * in one thing: a null interval, or timestamp with nanoseconds, has a place of its own, as Spark
 * writes it; Spark's check, which its own providers make on few rows, refuses that.
 * Thread-safe.
 */
private[redisstate] final class RowCheck(schema: StructType) {
  import RowCheck._

  private val columns = schema.length
  private val nullBytes = UnsafeRow.calculateBitSetWidthInBytes(columns)
  private val fixedBytes = nullBytes + 8 * columns
  private val varies = schema.fields.map(field => !UnsafeRow.isFixedLength(field.dataType))
  private val kept = schema.fields.map(field => keptBytes(field.dataType))
  private val unused = schema.fields.map(field => unusedBits(field.dataType))

  /**
   * Returns the fault of a row, or null.
   *
   * @param offset of the version byte in front of it
   * @param length with the version byte
   */
  def fault(bytes: Array[Byte], offset: Int, length: Int): String = {
    val head = headFault(bytes, offset, length)
    val rowBytes = length - RowCodec.VersionBytes
    if (head != null) head
    else if (rowBytes < fixedBytes) s"$rowBytes bytes are too few for a row of $columns columns"
    else if (isSound(bytes, offset + RowCodec.VersionBytes, rowBytes)) null
    else {
      val row = RowCodec.pointTo(new UnsafeRow(columns), bytes, offset, length)
      UnsafeRowUtils.validateStructuralIntegrityWithReason(row, schema)
        .orElse(schema.indices.find(leaves(row, _)).map(i => s"column $i lies outside of its row"))
        .orNull
    }
  }

  /**
   * Returns whether a column points out of its row; Spark's check adds offset and size as Ints,
   * which may come out negative.
   */
  private def leaves(row: UnsafeRow, column: Int): Boolean =
    varies(column) && {
      val (at, size) = UnsafeRowUtils.getOffsetAndSize(row, column)
      at.toLong + size > row.getSizeInBytes
    }

  /** Returns whether a row with enough bytes is certainly sound. */
  private[rows] def isSound(bytes: Array[Byte], offset: Int, length: Int): Boolean = {
    var sound = IsLittleEndian
    val base = Platform.BYTE_ARRAY_OFFSET.toLong + offset
    var variableBytes = 0L
    var i = 0
    while (sound && i < columns) {
      val word = Platform.getLong(bytes, base + nullBytes + 8L * i)
      val nulls = Platform.getLong(bytes, base + 8L * (i >> 6))
      val isNull = (nulls >>> (i & 63) & 1L) != 0
      if (isNull && word == 0) ()
      else if (isNull || varies(i)) {
        val at = word >> 32
        val size = word.toInt
        sound = size >= 0 && at >= fixedBytes && at + size <= length && (!isNull || size == kept(i))
        variableBytes += size
      } else sound = (word & unused(i)) == 0
      i += 1
    }
    sound && fixedBytes + variableBytes <= length
  }
}

private[redisstate] object RowCheck {
  private val IsLittleEndian = ByteOrder.nativeOrder == ByteOrder.LITTLE_ENDIAN

  /** Returns the fault that a row shows without its schema; see `fault`. */
  def headFault(bytes: Array[Byte], offset: Int, length: Int): String = {
    val rowBytes = length - RowCodec.VersionBytes
    if (rowBytes < 0 || rowBytes % 8 != 0 || bytes(offset) != RowCodec.RowVersion)
      s"$length bytes are not an UnsafeRow of encoding version 0"
    else null
  }

  /**
   * Size that a null of this type states, so that Spark can write a value there; -1 where it has no
   * place.
   */
  private def keptBytes(of: DataType): Int = of match {
    case decimal: DecimalType if decimal.precision > Decimal.MAX_LONG_DIGITS => 0
    case other if UnsafeRowUtils.avoidSetNullAt(other) => 16
    case _ => -1
  }

  /** Bits of a column's eight bytes that a value of this type leaves zero. */
  private def unusedBits(of: DataType): Long = of match {
    case BooleanType => ~1L
    case ByteType => ~0xffL
    case ShortType => ~0xffffL
    case IntegerType | FloatType => ~0xffffffffL
    case _ => 0L
  }
}
