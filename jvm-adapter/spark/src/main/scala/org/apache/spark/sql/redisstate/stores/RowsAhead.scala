package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.redisstate.rows.RowCodec

import org.redisstate.core.store.Prefetch

/**
 * State that a task will ask for because of some items, read from files together: of rows of its
 * input, or of pairs of a scan.
 */
private[redisstate] trait StateAhead[A] extends AutoCloseable {

  /** Adds what the task asks for because of an item. */
  def add(item: A): Unit

  /** Reads of single stores that this adds to. */
  protected def reads: Seq[RowsAhead]

  /** True if the state of more items would not find room. */
  def isFull: Boolean = reads.exists(_.isFull)
  def start(): Unit = reads.foreach(_.start())
  def await(): Unit = reads.foreach(_.await())
  override def close(): Unit = reads.foreach(_.close())
}

/** Rows of a store that its task will ask for, read from files together; see `Prefetch`. */
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
