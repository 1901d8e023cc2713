package org.apache.spark.sql.redisstate.rows

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.errors.StoreErrors

import org.redisstate.core.format.Family

/** Spark's encoders of one column family that is not bare; they generate code. For one thread at a time. */
private[redisstate] final class FamilyEncoders(layout: FamilyLayout, useColumnFamilies: Boolean) {
  private val ofAvro: Option[AvroStateEncoder] =
    layout.encoding.encoder(layout.spec, layout.valueSchema, layout.family.name)

  val keys: RocksDBKeyStateEncoder = {
    val columns = ofAvro.getOrElse(new UnsafeRowDataEncoder(layout.spec, layout.valueSchema))
    layout.spec.toEncoder(columns, useColumnFamilies)
  }

  private val repeatTime =
    if (layout.asked.isEmpty) null else KeyShape.repeatTime(layout.keySchema)

  def decodeKey(bytes: Array[Byte]): UnsafeRow = {
    val key = keys.decodeKey(bytes)
    if (repeatTime == null) key else repeatTime(key)
  }

  /** Returns the encoder of keys that are looked up or written. */
  def toEncode: RocksDBKeyStateEncoder =
    if (repeatTime == null) keys
    else {
      val asked = layout.columns.copy(key = layout.asked.get)
      throw StoreErrors.otherColumns(
        layout.family.name,
        ColumnChanges.inWords(layout.columns, asked))
    }

  /** Encoder of Avro; exists only if the layout uses Avro. */
  def avro: AvroStateEncoder = ofAvro.get
}

/**
 * The encoders of one provider that no store uses at present. Spark generates their code with each
 * that is made, which took a fourth of opening and committing a small batch. Its RocksDB provider
 * keeps one of each for all of its stores, as no two of them are used at once; here two attempts
 * may be, so each takes its own, and only one that has committed gives them back: of an attempt
 * that failed another thread may still be at work.
 */
private[redisstate] final class EncoderPool(val useColumnFamilies: Boolean) {
  import EncoderPool._

  private val idle = new ConcurrentHashMap[FamilyLayout, FamilyEncoders]
  private val layouts = new ConcurrentHashMap[Family, FamilyLayout]

  /** Encoders that nobody else has. */
  def take(layout: FamilyLayout): FamilyEncoders =
    Option(idle.remove(layout)).getOrElse(new FamilyEncoders(layout, useColumnFamilies))

  def giveBack(layout: FamilyLayout, encoders: FamilyEncoders): Unit = {
    if (idle.size >= FamiliesMax) idle.clear()
    idle.put(layout, encoders)
    ()
  }

  /** The layout of a family as a version describes it. */
  def layoutOf(family: Family): FamilyLayout = {
    if (layouts.size >= FamiliesMax) layouts.clear()
    layouts.computeIfAbsent(family, FamilyLayout.of)
  }
}

private[redisstate] object EncoderPool {

  /** Layouts that are gone, as after a change of a schema, are not kept for ever. */
  private val FamiliesMax = 200
}
