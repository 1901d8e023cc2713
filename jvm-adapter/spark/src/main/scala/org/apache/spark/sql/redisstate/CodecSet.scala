package org.apache.spark.sql.redisstate

import scala.collection.mutable

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DataType, StructType}

import org.redisstate.core.format.Family

/** The codecs of one store object, by column family name; the checks of Spark's RocksDB provider apply. For one thread. */
private[redisstate] final class CodecSet(
    keySchema: StructType,
    valueSchema: StructType,
    spec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean,
    defaultFamily: Family) {
  private val default = new RowCodec(defaultFamily, keySchema, valueSchema, spec, useColumnFamilies)
  private val others = mutable.HashMap.empty[String, RowCodec]

  /** Makes a version's families known. */
  def learn(families: Seq[Family]): Unit =
    families.filter(_.id != defaultFamily.id).foreach { family =>
      if (!others.get(family.name).exists(_.family == family)) {
        val key = DataType.fromJson(family.keySchema).asInstanceOf[StructType]
        val value = DataType.fromJson(family.valueSchema).asInstanceOf[StructType]
        others(family.name) =
          new RowCodec(family, key, value, RowCodec.specOf(family, key), useColumnFamilies)
      }
    }

  def of(operation: String, name: String): RowCodec =
    if (name == StateStore.DEFAULT_COL_FAMILY_NAME) default
    else {
      if (!useColumnFamilies) throw unsupported(operation)
      if (name.isEmpty || name.trim != name) {
        throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
      }
      others.getOrElse(
        name,
        throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name))
    }

  def names: Set[String] = others.keySet.toSet + StateStore.DEFAULT_COL_FAMILY_NAME

  /** @throws Exception of Spark's for a name that cannot be created or removed */
  def checkName(operation: String, name: String, internal: Boolean): Unit = {
    if (!useColumnFamilies) throw unsupported(operation)
    if (name.isEmpty || name.trim != name || (name == StateStore.DEFAULT_COL_FAMILY_NAME && !internal)) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!internal && name.charAt(0) == '$')
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  }

  def has(name: String): Boolean =
    name == StateStore.DEFAULT_COL_FAMILY_NAME || others.contains(name)

  /** Ids are never used again: the next is above every one that is known. */
  def nextId(everUsed: Int): Int =
    math.max(everUsed, (others.values.map(_.family.id) ++ Seq(0)).max) + 1

  def forget(name: String): Unit = { others.remove(name); () }

  private def unsupported(operation: String) =
    StateStoreErrors.unsupportedOperationException(
      operation,
      "multiple column families is disabled in RedisStateStoreProvider")
}
