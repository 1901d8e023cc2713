package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.redisstate.rows.{Columns, RowCodec}
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.FamilyKind

/**
 * Reads ahead the state variables of a `transformWithState` for the groups of its input. Only the
 * processor knows which of them it will use, so all variables of a grouping key are read. For the
 * thread that passes on the input, which may be another one than that of the store.
 *
 * @param key columns of the grouping key
 */
private[redisstate] final class GroupsAhead(
    store: () => Option[RedisReads],
    key: StructType,
    keys: () => UnsafeProjection) {

  private lazy val families = store().toSeq.flatMap(one => one.otherFamilies.flatMap(of(one, _)))

  /** Returns the rows, unchanged and in order. */
  def over(rows: Iterator[InternalRow]): Iterator[InternalRow] = {
    lazy val keyOf = keys()
    Windows.ofRows(
      rows,
      () => KeysAhead.of(keyOf, families),
      () => families.foreach(_.codec.giveBack()))
  }

  private def of(store: RedisReads, codec: RowCodec): Option[KeyedFamily] = {
    val columns = codec.layout.keySchema
    codec.family.kind match {
      case FamilyKind.Plain if Columns.sameTypes(columns, key) => Some(KeyedFamily(store, codec))
      case FamilyKind.Prefix if codec.family.params == Seq(1) =>
        columns.head.dataType match {
          case nested: StructType if Columns.sameTypes(nested, key) =>
            Some(KeyedFamily.ofNested(store, codec, key))
          case _ => None
        }
      case _ => None
    }
  }
}
