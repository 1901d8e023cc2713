package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  BoundReference,
  CreateStruct,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.redisstate.rows.RowCodec
import org.apache.spark.sql.types.StructType

/**
 * Rows of a family that a task needs for one key.
 *
 * @param codec for the thread that passes on the input of the operator
 * @param prefix makes the prefix of all needed rows; None if only the row of the key is needed
 */
private[redisstate] final case class KeyedFamily(
    store: RedisReads,
    codec: RowCodec,
    prefix: Option[UnsafeRow => UnsafeRow] = None) {

  def add(key: UnsafeRow, reads: RowsAhead): Unit =
    prefix.fold(reads.add(codec, key))(of => reads.addPrefix(codec, of(key)))
}

private[redisstate] object KeyedFamily {

  /** Rows of a family whose keys begin with the columns of a key. */
  def ofPrefix(store: RedisReads, codec: RowCodec): KeyedFamily =
    KeyedFamily(store, codec, Some(identity))

  /** Rows of a family whose keys begin with a key as a single column. */
  def ofNested(store: RedisReads, codec: RowCodec, key: StructType): KeyedFamily = {
    val columns = key.zipWithIndex.map { case (column, at) =>
      BoundReference(at, column.dataType, column.nullable)
    }
    val nested = UnsafeProjection.create(Seq(CreateStruct(columns)))
    KeyedFamily(store, codec, Some(nested(_)))
  }
}

/** Reads ahead the state for a key in each row of the input, in one or more families. */
private[redisstate] final class KeysAhead private (
    keyOf: UnsafeProjection,
    families: Seq[(KeyedFamily, RowsAhead)],
    override protected val reads: Seq[RowsAhead])
    extends StateAhead[InternalRow] {

  override def add(row: InternalRow): Unit = {
    val key = keyOf(row)
    families.foreach { case (family, into) => family.add(key, into) }
  }
}

private[redisstate] object KeysAhead {

  /** Returns None if no row is in a file. */
  def of(
      keyOf: UnsafeProjection,
      families: Seq[KeyedFamily]): Option[KeysAhead] = {
    val reads = families.map(_.store).distinct.flatMap(one => one.ahead().map(one -> _)).toMap
    val used = families.flatMap(family => reads.get(family.store).map(family -> _))
    Option.when(used.nonEmpty)(new KeysAhead(keyOf, used, reads.values.toSeq))
  }
}
