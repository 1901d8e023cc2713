package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._

import org.redisstate.core.format.{Family, FamilyKind}

/**
 * A column family and what Spark calls its parts. The columns of a key are those of the spec:
 * Spark's join state format 4 passes its join keys beside it, and only the spec has the event time
 * too.
 *
 * @param asked the columns that keys are read as, where they were written with others (`KeyShape`)
 */
private[redisstate] final case class FamilyLayout(
    family: Family,
    encoding: RowEncoding,
    spec: KeyStateEncoderSpec,
    asked: Option[StructType] = None)(val valueSchema: StructType) {

  def keySchema: StructType = spec.keySchema

  def columns: Columns = Columns(keySchema, valueSchema)

  def askedAs(columns: StructType): FamilyLayout = copy(asked = Some(columns))(valueSchema)

  /** Returns this layout with the event time of its keys, added if the description lacks it. */
  def withTime: FamilyLayout =
    if (namesKey) this
    else {
      val timed = keySchema.add(FamilyLayout.EventTime, LongType, nullable = false)
      val described = encoding.describe(timed, family.name, isKey = true)
      val spec = FamilyLayout.specOf(family, timed)
      copy(family = family.copy(keySchema = described), spec = spec)(valueSchema)
    }

  /** As of the family, where a version describes it. */
  lazy val namesKey: Boolean = FamilyLayout.namesKey(family.kind, keySchema)

  /** True if keys and values are stored as the rows are in memory, and keys have no order. */
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

  /** Returns the layout of a family as a version describes it. */
  def of(family: Family): FamilyLayout = {
    val (key, value) = RowEncoding.schemas(family)
    FamilyLayout(family, RowEncoding.of(family), specOf(family, key))(value)
  }

  /**
   * True if the description names all columns of the key. An earlier redis-state omitted the
   * timestamp of Spark's joins (docs/format.md, 4.5).
   */
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
