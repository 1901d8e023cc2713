package org.apache.spark.sql.redisstate.stores.joins

import org.apache.spark.sql.catalyst.expressions.{
  BoundReference,
  Literal,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.types.{LongType, StructType}

/** Makes the keys of rows: a join key and an index. For one thread; rows are reused. */
private[joins] final class IndexedKeys(schema: StructType) {
  private val columns = schema.init.zipWithIndex.map { case (column, at) =>
    BoundReference(at, column.dataType, column.nullable)
  }
  private val toKey = UnsafeProjection.create(columns)
  private val toIndexed = UnsafeProjection.create(columns :+ Literal(0L, LongType))

  def keyOf(indexed: UnsafeRow): UnsafeRow = toKey(indexed)

  def of(key: UnsafeRow, index: Long): UnsafeRow = {
    val row = toIndexed(key)
    row.setLong(columns.length, index)
    row
  }
}
