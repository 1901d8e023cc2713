package org.apache.spark.sql.redisstate.stores

import org.apache.spark.SparkEnv
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{
  StateStoreId,
  StateStoreIterator,
  UnsafeRowPair
}
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}

import org.redisstate.core.store.WriteSession

/**
 * Store of an operator that reads state in one thread while another one writes: so does
 * `applyInPandasWithState` where Spark sends rows to Python ahead. Runs one call at a time.
 */
private[redisstate] final class SharedStore(
    id: StateStoreId,
    session: WriteSession,
    codecs: CodecSet,
    host: StoreHost)
    extends RedisStateStore(id, session, codecs, host) {

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow =
    synchronized(super.get(key, colFamilyName))

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean =
    synchronized(super.keyExists(key, colFamilyName))

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    synchronized(super.put(key, value, colFamilyName))

  override def remove(key: UnsafeRow, colFamilyName: String): Unit =
    synchronized(super.remove(key, colFamilyName))

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = synchronized {
    val rows = super.iterator(colFamilyName)
    new StateStoreIterator(new Iterator[UnsafeRowPair] {
      override def hasNext: Boolean = SharedStore.this.synchronized(rows.hasNext)
      override def next(): UnsafeRowPair = SharedStore.this.synchronized(rows.next())
    })
  }

  override private[redisstate] def codecOfInput: RowCodec = codecs.another()

  override def commit(): Long = synchronized(super.commit())
}

private[redisstate] object SharedStore {

  /** Option of the application, since Spark 4.3: a thread of its own sends rows to Python. */
  private[redisstate] val Setting = "spark.python.udf.pipelined.enabled"

  /** Returns whether an operator of this process may use its store in two threads. */
  def isNeeded: Boolean = {
    val env = SparkEnv.get
    env != null && env.conf.getBoolean(Setting, defaultValue = false)
  }
}
