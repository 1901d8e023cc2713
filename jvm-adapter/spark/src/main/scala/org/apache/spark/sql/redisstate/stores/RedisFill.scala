package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, StateStoreId}
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}
import org.apache.spark.sql.types.StructType

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Expiry, RowIterator, Slice}
import org.redisstate.core.store.FillSession

/** Writes all rows of a version, each key once. For one thread. */
private[redisstate] final class RedisFill(
    id: StateStoreId,
    session: FillSession,
    codecs: CodecSet) {
  codecs.learn(session.allFamilies)

  /** Rows of a family may come from now on. */
  def createFamily(
      name: String,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      multiValue: Boolean,
      internal: Boolean): Unit =
    codecs
      .declare(
        name,
        valueSchema,
        spec,
        multiValue,
        internal,
        codecs.nextId(0),
        _ => RedisFill.NoRows)
      .foreach(session.defineFamily)

  /** @param expiryS of the row, if it can expire: seconds since 1970 */
  def put(key: UnsafeRow, value: UnsafeRow, family: String, expiryS: Long): Unit = {
    val codec = codecs.of("put", family)
    val keyLength = codec.encodeKey(key)
    put(codec, keyLength, codec.encodeValue(value), expiryS)
  }

  def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = {
    val codec = codecs.of("putList", family)
    val keyLength = codec.encodeKey(key)
    put(codec, keyLength, codec.encodeList(values), Expiry.Never)
  }

  private def put(codec: RowCodec, keyLength: Int, valueLength: Int, expiryS: Long): Unit =
    try session.put(codec.key, keyLength, codec.value, valueLength, expiryS)
    catch { case e: RedisStateException => throw StoreErrors.cannotUse(id, e) }

  /** @return the new version */
  def commit(): Pin =
    try {
      val pin = session.commit()
      codecs.giveBack()
      pin
    } catch { case e: Throwable => throw StoreErrors.cannotCommit(id, e) }

  /** Drops uncommitted rows. */
  def close(): Unit = session.abort()
}

private object RedisFill {
  private val NoRows: RowIterator = (_: Slice, _: Slice) => false
}
