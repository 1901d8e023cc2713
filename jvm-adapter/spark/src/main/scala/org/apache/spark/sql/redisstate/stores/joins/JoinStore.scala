package org.apache.spark.sql.redisstate.stores.joins

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}
import org.apache.spark.sql.redisstate.stores.{RedisStateStore, StoreHost}

import org.redisstate.core.store.WriteSession

/**
 * One of the four stores of a join whose rows have a time to live: the rows or the counts of a side. A
 * row that replaces another one keeps its expiry; a new one gets that of its join key.
 */
private[redisstate] final class JoinStore(
    id: StateStoreId,
    session: WriteSession,
    codecs: CodecSet,
    host: StoreHost)
    extends RedisStateStore(id, session, codecs, host)
    with JoinRows {
  import JoinStore._

  private val hasRows = id.storeName.endsWith(JoinKeys.Rows)
  private lazy val indexed = new IndexedKeys(codec.layout.keySchema)
  private val keys =
    try JoinKeys.join(this)
    catch {
      case e: Throwable =>
        abort()
        throw e
    }

  private def codec: RowCodec = codecs.of("put", Family)

  override def newExpiryS: Long = session.expiryS

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    checkPut(key, value)
    // The codec's buffers are used for other rows of the key before those of this one.
    val expiryS = expiryOf(key).getOrElse(
      keys.expiryOf(if (hasRows) indexed.keyOf(key) else key))
    val keyLength = codec.encodeKey(key)
    val valueLength = codec.encodeValue(value)
    asked(session.put(codec.key, keyLength, codec.value, valueLength, expiryS))
  }

  override def expiryOf(key: UnsafeRow): Option[Long] = {
    val length = codec.encodeKey(key)
    asked(session.expiryOf(codec.key, length))
  }

  override def countOf(key: UnsafeRow): Long = Option(get(key, Family)).fold(0L)(_.getLong(0))

  override def renew(key: UnsafeRow, expiryS: Long): Unit = {
    val length = codec.encodeKey(key)
    asked(session.renew(codec.key, length, expiryS))
  }

  override def renew(key: UnsafeRow, index: Long, expiryS: Long): Unit =
    renew(indexed.of(key, index), expiryS)
}

private[redisstate] object JoinStore {
  private val Family = StateStore.DEFAULT_COL_FAMILY_NAME
}
