package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.{Family, FamilyKind}

/** A column family and what Spark calls its parts. The family says it all, so that two are equal if family and encoding are. */
private[redisstate] final case class FamilyLayout(family: Family, encoding: RowEncoding)(
    val keySchema: StructType,
    val valueSchema: StructType,
    val spec: KeyStateEncoderSpec) {

  /** Whether keys and values are stored as the rows are in memory, and keys in no order. */
  def isBare: Boolean =
    encoding == RowEncoding.Plain && spec.isInstanceOf[NoPrefixKeyStateEncoderSpec]
}

private[redisstate] object FamilyLayout {

  /** Of a family that is declared by Spark. */
  def apply(
      id: Int,
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      multiValue: Boolean,
      internal: Boolean,
      encoding: RowEncoding): FamilyLayout = {
    val (kind, params) = kindOf(spec)
    val key = encoding.describe(keySchema, name, isKey = true)
    val value = encoding.describe(valueSchema, name, isKey = false)
    val family = Family(id, name, kind, params, key, value, multiValue, internal)
    FamilyLayout(family, encoding)(keySchema, valueSchema, spec)
  }

  /** Of a family as a version describes it. */
  def of(family: Family): FamilyLayout = {
    val (key, value) = RowEncoding.schemas(family)
    FamilyLayout(family, RowEncoding.of(family))(key, value, specOf(family, key))
  }

  private def kindOf(spec: KeyStateEncoderSpec): (FamilyKind, Seq[Int]) = spec match {
    case _: NoPrefixKeyStateEncoderSpec => (FamilyKind.Plain, Nil)
    case p: PrefixKeyScanStateEncoderSpec => (FamilyKind.Prefix, Seq(p.numColsPrefixKey))
    case r: RangeKeyScanStateEncoderSpec => (FamilyKind.Range, r.orderingOrdinals)
    case other => (EncoderShim.kindOf(other), Nil)
  }

  private def specOf(family: Family, keySchema: StructType): KeyStateEncoderSpec =
    family.kind match {
      case FamilyKind.Plain => NoPrefixKeyStateEncoderSpec(keySchema)
      case FamilyKind.Prefix => PrefixKeyScanStateEncoderSpec(keySchema, family.params.head)
      case FamilyKind.Range => RangeKeyScanStateEncoderSpec(keySchema, family.params)
      case kind => EncoderShim.specOf(kind, keySchema)
    }
}
