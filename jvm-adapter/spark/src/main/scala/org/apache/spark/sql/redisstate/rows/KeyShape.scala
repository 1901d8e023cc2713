package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection}
import org.apache.spark.sql.types.{LongType, StructType}

import org.redisstate.core.format.FamilyKind

/**
 * Keys of Spark's join state format 4 as its state reader asks for them
 * (`StreamStreamJoinStatePartitionReader`). It passes the key columns of the schema file for the
 * join keys. They have the event time already, so its spec has two columns for one event time.
 */
private[redisstate] object KeyShape {

  /**
   * The layout that reads a family for Spark's state reader, None where others ask. Keys cannot be
   * written with it.
   *
   * @param known of the family, as a version describes it
   */
  def ofReader(known: FamilyLayout, asked: FamilyLayout): Option[FamilyLayout] =
    Option.when(isByTime(known.family.kind))(known.withTime).filter { written =>
      val columns = asked.keySchema
      columns.length == written.keySchema.length + 1 && columns.last.dataType == LongType &&
      Columns.sameTypes(StructType(columns.init), written.keySchema)
    }.map(_.askedAs(asked.keySchema))

  /** Rows of these columns, with the last column twice. */
  def repeatTime(written: StructType): UnsafeProjection = {
    val columns = written.indices :+ written.length - 1
    UnsafeProjection.create(columns.map(i =>
      BoundReference(i, written(i).dataType, written(i).nullable)))
  }

  private def isByTime(kind: FamilyKind): Boolean =
    kind == FamilyKind.TimestampPrefix || kind == FamilyKind.TimestampPostfix
}
