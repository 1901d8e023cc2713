package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.stores.{
  GroupsAhead,
  KeyedFamily,
  KeysAhead,
  RedisReads,
  TaskStores,
  Windows
}
import org.apache.spark.sql.redisstate.stores.joins.{JoinAhead, JoinRemoval}
import org.apache.spark.sql.types.StructType

/** State that an operator needs for the rows of an input. */
private[redisstate] sealed trait StateReads {

  /**
   * Returns the rows, unchanged and in order, and reads state ahead of them. The operator has
   * opened its stores before it asks for the first row.
   *
   * @param operator its id
   * @param keys makes a function for the key of a row, as the operator projects it
   */
  def over(
      rows: Iterator[InternalRow],
      operator: Long,
      keys: () => UnsafeProjection): Iterator[InternalRow]
}

private[query] object StateReads {

  /** The row of a key. */
  case object RowOfKey extends StateReads {
    override def over(
        rows: Iterator[InternalRow],
        operator: Long,
        keys: () => UnsafeProjection): Iterator[InternalRow] =
      ofStore(rows, operator, keys)(one => KeyedFamily(one, one.codecOfInput))
  }

  /** All rows whose keys begin with a key. */
  case object RowsOfPrefix extends StateReads {
    override def over(
        rows: Iterator[InternalRow],
        operator: Long,
        keys: () => UnsafeProjection): Iterator[InternalRow] =
      ofStore(rows, operator, keys)(one => KeyedFamily.ofPrefix(one, one.codecOfInput))
  }

  /** State variables of a group. */
  final case class RowsOfGroup(key: StructType) extends StateReads {
    override def over(
        rows: Iterator[InternalRow],
        operator: Long,
        keys: () => UnsafeProjection): Iterator[InternalRow] =
      new GroupsAhead(() => storeOf(operator), key, keys).over(rows)
  }

  /** Rows of both sides of a join. */
  final case class RowsOfJoin(isLeft: Boolean, format: Int, removal: Option[JoinRemoval])
      extends StateReads {
    override def over(
        rows: Iterator[InternalRow],
        operator: Long,
        keys: () => UnsafeProjection): Iterator[InternalRow] =
      new JoinAhead(operator, isLeft, format, removal, keys).over(rows)
  }

  private def storeOf(operator: Long): Option[RedisReads] =
    TaskStores.find(operator, StateStoreId.DEFAULT_STORE_NAME)

  private def ofStore(
      rows: Iterator[InternalRow],
      operator: Long,
      keys: () => UnsafeProjection)(familyOf: RedisReads => KeyedFamily): Iterator[InternalRow] = {
    lazy val families = storeOf(operator).map(familyOf).toSeq
    lazy val keyOf = keys()
    Windows.ofRows(rows, () => KeysAhead.of(keyOf, families))
  }
}
