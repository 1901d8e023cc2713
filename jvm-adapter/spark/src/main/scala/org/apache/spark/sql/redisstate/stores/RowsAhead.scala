package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.redisstate.rows.RowCodec

import org.redisstate.core.store.Prefetch

/**
 * Rows of a store that its task will ask for, read from files together; see `Prefetch`.
 *
 * @param byPrefix whether all rows of a prefix are asked for, and not the row of a key
 */
private[redisstate] final class RowsAhead(codec: RowCodec, byPrefix: Boolean, prefetch: Prefetch)
    extends AutoCloseable {

  /** Adds the row of a key, or the rows of a prefix. */
  def add(key: UnsafeRow): Unit =
    if (!byPrefix) {
      val length = codec.encodeKey(key)
      prefetch.add(codec.key, length)
    } else if (!codec.family.kind.ordered) {
      val length = codec.encodePrefix(key)
      prefetch.addPrefix(codec.key, length)
    }

  def isFull: Boolean = prefetch.isFull
  def start(): Unit = prefetch.start()
  def await(): Unit = prefetch.await()
  override def close(): Unit = prefetch.close()
}
