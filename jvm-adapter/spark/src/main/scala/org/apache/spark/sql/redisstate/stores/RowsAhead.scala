package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.redisstate.rows.RowCodec

import org.redisstate.core.store.Prefetch

/**
 * Reads ahead the state that a task needs for some items, from files: for rows of its input, or for
 * pairs of a scan.
 */
private[redisstate] trait StateAhead[A] extends AutoCloseable {

  /** Adds the state that the task needs for an item. */
  def add(item: A): Unit

  /** Reads of the single stores. */
  protected def reads: Seq[RowsAhead]

  /** True if there is no room for the state of more items. */
  def isFull: Boolean = reads.exists(_.isFull)
  def start(): Unit = reads.foreach(_.start())
  def await(): Unit = reads.foreach(_.await())
  override def close(): Unit = reads.foreach(_.close())
}

/** Reads ahead the rows of one store that its task needs, from files; see `Prefetch`. */
private[redisstate] final class RowsAhead(prefetch: Prefetch) extends AutoCloseable {

  /** Adds the row of a key. */
  def add(codec: RowCodec, key: UnsafeRow): Unit = {
    val length = codec.encodeKey(key)
    prefetch.add(codec.key, length)
  }

  /** Adds the rows of a prefix. */
  def addPrefix(codec: RowCodec, prefix: UnsafeRow): Unit =
    if (!codec.family.kind.ordered) {
      val length = codec.encodePrefix(prefix)
      prefetch.addPrefix(codec.key, length)
    }

  /** Returns whether the row of a key can be looked up without a read. */
  def isHere(codec: RowCodec, key: UnsafeRow): Boolean = {
    val length = codec.encodeKey(key)
    prefetch.isHere(codec.key, length)
  }

  def isFull: Boolean = prefetch.isFull
  def start(): Unit = prefetch.start()
  def await(): Unit = prefetch.await()
  override def close(): Unit = prefetch.close()
}
