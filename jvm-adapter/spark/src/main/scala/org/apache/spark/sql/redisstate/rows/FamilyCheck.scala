package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.{BinaryType, StructField, StructType}

import org.redisstate.core.format.{Family, FamilyKind}

/** Checks that keys and values of a column family fit its encoder and schemas. Thread-safe. */
private[redisstate] final class FamilyCheck(val family: Family) {
  import FamilyCheck._

  private val (keySchema, valueSchema) = RowEncoding.schemas(family)
  private val avro = RowEncoding.isAvro(family)
  private val namesKey = FamilyLayout.namesKey(family.kind, keySchema)

  /** Columns of the two rows that make up a split key. */
  private val (first, second): (StructType, StructType) = family.kind match {
    case FamilyKind.Prefix =>
      val (prefix, rest) = keySchema.fields.splitAt(family.params.head)
      (StructType(prefix), StructType(rest))
    case FamilyKind.Range =>
      val ordered = family.params.map(i => StructField(keySchema(i).name, BinaryType))
      val rest = keySchema.indices.filterNot(family.params.contains).map(keySchema(_))
      (StructType(ordered), StructType(rest))
    case FamilyKind.Plain => (keySchema, StructType(Nil))
    case _ => (StructType(keySchema.fields.dropRight(1)), StructType(Nil))
  }
  private val (firstRow, secondRow) = (new RowCheck(first), new RowCheck(second))
  private val valueRow = new RowCheck(valueSchema)

  /**
   * Returns the fault of an encoded key, or null. A key with unknown columns is checked when the
   * query declares the family.
   */
  def key(bytes: Array[Byte], offset: Int, length: Int): String = family.kind match {
    case _ if !namesKey => null
    case FamilyKind.Plain => row(bytes, offset, length, firstRow)
    case FamilyKind.TimestampPrefix =>
      row(bytes, offset + TimestampBytes, length - TimestampBytes, firstRow)
    case FamilyKind.TimestampPostfix => row(bytes, offset, length - TimestampBytes, firstRow)
    case FamilyKind.Prefix | FamilyKind.Range => split(bytes, offset, length)
  }

  /** Returns the fault of a value, or of one element of a list; else null. */
  def value(bytes: Array[Byte], offset: Int, length: Int): String =
    row(bytes, offset, length, valueRow)

  private def split(bytes: Array[Byte], offset: Int, length: Int): String = {
    val firstBytes = if (length < 4) -1 else littleEndian(bytes, offset)
    if (firstBytes < 0 || firstBytes > length - 4)
      "the key has no prefix of the length that it names"
    else {
      val wrong =
        if (avro) Option(avroRow(bytes, offset + 4, firstBytes, RowCodec.VersionBytes))
        else {
          Option(row(bytes, offset + 4, firstBytes, firstRow))
            .orElse(Option(ordinals(bytes, offset + 4, firstBytes)))
        }
      wrong.getOrElse(
        if (second.isEmpty) null
        else row(bytes, offset + 4 + firstBytes, length - 4 - firstBytes, secondRow))
    }
  }

  /** The columns of a range scan have one length each. */
  private def ordinals(bytes: Array[Byte], offset: Int, length: Int): String =
    if (family.kind != FamilyKind.Range) null
    else {
      val columns = RowCodec.pointTo(new UnsafeRow(first.length), bytes, offset, length)
      val wrong = family.params.indices.exists { i =>
        columns.isNullAt(i) ||
        columns.getBinary(i).length != keySchema(family.params(i)).dataType.defaultSize + 1
      }
      if (wrong) "a column of the key's order has another length" else null
    }

  /**
   * Spark's Avro decoder does not read past its bytes, whatever they are: only the frame is checked
   * here.
   */
  private def avroRow(bytes: Array[Byte], offset: Int, length: Int, least: Int): String =
    if (length < least || bytes(offset) != RowCodec.RowVersion)
      s"$length bytes are not an Avro row of encoding version 0"
    else null

  private def row(bytes: Array[Byte], offset: Int, length: Int, columns: RowCheck): String =
    if (avro) avroRow(bytes, offset, length, AvroHeadBytes)
    else columns.fault(bytes, offset, length)
}

private[redisstate] object FamilyCheck {
  private val TimestampBytes = 8

  /** Version byte and schema id. */
  private val AvroHeadBytes = 3

  private def littleEndian(bytes: Array[Byte], at: Int): Int =
    (bytes(at) & 0xff) | ((bytes(at + 1) & 0xff) << 8) | ((bytes(at + 2) & 0xff) << 16) |
      ((bytes(at + 3) & 0xff) << 24)
}
