package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

import org.redisstate.core.format.{Family, FamilyKind}

/**
 * A column family and what Spark calls its parts. The columns of a key are those of the spec: Spark's join state format 4 passes its join
 * keys beside it, and only the spec has the event time too.
 */
private[redisstate] final case class FamilyLayout(
    family: Family,
    encoding: RowEncoding,
    spec: KeyStateEncoderSpec)(val valueSchema: StructType) {

  def keySchema: StructType = spec.keySchema

  /** As of the family, where a version describes it. */
  lazy val namesKey: Boolean = FamilyLayout.namesKey(family.kind, keySchema)

  /** Whether keys and values are stored as the rows are in memory, and keys in no order. */
  def isBare: Boolean =
    encoding == RowEncoding.Plain && spec.isInstanceOf[NoPrefixKeyStateEncoderSpec]
}

private[redisstate] object FamilyLayout {

  /**
   * Spark's name of the timestamp after the columns of a key, `INTERNAL_TIMESTAMP_COLUMN_NAME` of
   * its encoder.
   */
  private val EventTime = "__event_time"

  /**
   * Of a family that is declared by Spark.
   *
   * @throws Exception of Spark's for columns that its encoders cannot order
   */
  def apply(
      id: Int,
      name: String,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      multiValue: Boolean,
      internal: Boolean,
      encoding: RowEncoding): FamilyLayout = {
    val (kind, params) = kindOf(spec)
    val key = encoding.describe(spec.keySchema, name, isKey = true)
    val value = encoding.describe(valueSchema, name, isKey = false)
    val family = Family(id, name, kind, params, key, value, multiValue, internal)
    FamilyLayout(family, encoding, spec)(valueSchema)
  }

  /** Of a family as a version describes it. */
  def of(family: Family): FamilyLayout = {
    val (key, value) = RowEncoding.schemas(family)
    FamilyLayout(family, RowEncoding.of(family), specOf(family, key))(value)
  }

  /** Whether the description names all columns of the key: an earlier redis-state left the timestamp of Spark's joins out (docs/format.md, 4.5). */
  def namesKey(kind: FamilyKind, keySchema: StructType): Boolean = kind match {
    case FamilyKind.TimestampPrefix | FamilyKind.TimestampPostfix =>
      keySchema.lastOption.exists(c => c.name == EventTime && c.dataType == LongType)
    case _ => true
  }

  /** The columns of a key but for the timestamp. */
  def withoutTime(keySchema: StructType): StructType =
    StructType(keySchema.filterNot(_.name == EventTime))

  private def kindOf(spec: KeyStateEncoderSpec): (FamilyKind, Seq[Int]) = spec match {
    case _: NoPrefixKeyStateEncoderSpec => (FamilyKind.Plain, Nil)
    case p: PrefixKeyScanStateEncoderSpec => (FamilyKind.Prefix, Seq(p.numColsPrefixKey))
    case r: RangeKeyScanStateEncoderSpec =>
      checkOrdered(r)
      (FamilyKind.Range, r.orderingOrdinals)
    case other => (EncoderShim.kindOf(other), Nil)
  }

  /** As Spark's encoder when it is made, which is later here. */
  private def checkOrdered(spec: RangeKeyScanStateEncoderSpec): Unit =
    spec.orderingOrdinals.foreach { at =>
      val column = spec.keySchema(at)
      column.dataType match {
        case ByteType | BooleanType | ShortType | IntegerType | LongType | FloatType | DoubleType =>
        case NullType => throw StateStoreErrors.nullTypeOrderingColsNotSupported(
            column.name,
            at.toString)
        case _ => throw StateStoreErrors.variableSizeOrderingColsNotSupported(
            column.name,
            at.toString)
      }
    }

  private def specOf(family: Family, keySchema: StructType): KeyStateEncoderSpec =
    family.kind match {
      case FamilyKind.Plain => NoPrefixKeyStateEncoderSpec(keySchema)
      case FamilyKind.Prefix => PrefixKeyScanStateEncoderSpec(keySchema, family.params.head)
      case FamilyKind.Range => RangeKeyScanStateEncoderSpec(keySchema, family.params)
      case kind => EncoderShim.specOf(kind, keySchema)
    }
}
