package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.Family
import org.redisstate.core.local.{RowValidator, StoredKey}

/**
 * Checks the rows that come from Redis against the schemas of the operator and of its column
 * families. A row whose offsets point outside of its bytes would make Spark read foreign memory.
 */
private[redisstate] final class StateRowValidator(
    keySchema: StructType,
    valueSchema: StructType,
    plainKeys: Boolean,
    storeConf: StateStoreConf)
    extends RowValidator {
  private val keyRow = new RowCheck(keySchema)
  private val valueRow = new RowCheck(valueSchema)
  private val checkValue = storeConf.formatValidationCheckValue

  @volatile private var last = new OfFamilies(Nil)

  override def of(families: Seq[Family]): RowValidator = {
    val known = last
    if (known.families eq families) known
    else {
      val made = new OfFamilies(families)
      last = made
      made
    }
  }

  /** Validator for versions with these families. */
  private final class OfFamilies(val families: Seq[Family]) extends RowValidator {
    private val others = families
      .filter(f => f.id != 0 || RowEncoding.isAvro(f))
      .map(f => f.id -> new FamilyCheck(f)).toMap
    private val plainDefault = !others.contains(0)

    /** Rows of the other families are checked against what the version describes. */
    override def columnChanges(family: Int): String =
      if (family != 0 || !plainDefault) null
      else {
        val described = families.find(_.id == 0).map(RowEncoding.schemas)
        described.flatMap { case (key, value) =>
          ColumnChanges.of(Columns(key, value), Columns(keySchema, valueSchema))
        }.orNull
      }

    override def check(
        bytes: Array[Byte],
        keyOffset: Int,
        keyLength: Int,
        valueOffset: Int,
        valueLength: Int): String = {
      val family = StoredKey.familyOf(bytes, keyOffset)
      if (family == 0 && plainDefault) {
        StateRowValidator.this.check(bytes, keyOffset, keyLength, valueOffset, valueLength)
      } else others.get(family) match {
        case None => s"the version describes no column family $family"
        case Some(rows) =>
          val wrong =
            rows.key(bytes, keyOffset + RowCodec.FamilyBytes, keyLength - RowCodec.FamilyBytes)
          if (wrong != null || !checkValue) wrong else rows.value(bytes, valueOffset, valueLength)
      }
    }
  }

  /** Checks a row of the default family. */
  override def check(
      bytes: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      valueOffset: Int,
      valueLength: Int): String = {
    val keyFault =
      if (!plainKeys) null
      else {
        val from = keyOffset + RowCodec.FamilyBytes
        keyRow.fault(bytes, from, keyLength - RowCodec.FamilyBytes)
      }
    if (keyFault != null) keyFault
    else if (checkValue) valueRow.fault(bytes, valueOffset, valueLength)
    else RowCheck.headFault(bytes, valueOffset, valueLength)
  }
}
