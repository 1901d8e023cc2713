package org.apache.spark.sql.redisstate.rows

import scala.collection.mutable

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.sql.types.StructType

import org.redisstate.core.format.{Family, MultiValue}
import org.redisstate.core.local.{RowIterator, Slice}

/**
 * The codecs of one store object, by column family name; the checks of Spark's RocksDB provider
 * apply. For one thread.
 */
private[redisstate] final class CodecSet(defaultLayout: FamilyLayout, encoders: EncoderPool) {
  private val default = new RowCodec(defaultLayout, encoders)
  private val others = mutable.HashMap.empty[String, RowCodec]

  private def defaultFamily: Family = defaultLayout.family
  private def useColumnFamilies: Boolean = encoders.useColumnFamilies

  /** Makes a version's families known. */
  def learn(families: Seq[Family]): Unit =
    families.filter(_.id != defaultFamily.id).foreach { family =>
      if (!others.get(family.name).exists(_.family == family)) {
        others(family.name) = new RowCodec(encoders.layoutOf(family), encoders, declared = false)
      }
    }

  /**
   * The default family as the query has it, where a version describes other columns and all of its
   * rows fit. Not where families are declared: Spark leaves the default one empty then.
   *
   * @param rows of the default family, which are checked as they are read
   * @throws Exception named, when a row does not fit
   */
  def goOnWith(families: Seq[Family], rows: => RowIterator): Option[Family] =
    families.find(family => family.id == defaultFamily.id && family != defaultFamily)
      .filterNot(family => useColumnFamilies || RowEncoding.isAvro(family))
      .map(encoders.layoutOf)
      .filter(before => ColumnChanges.of(before.columns, defaultLayout.columns).isDefined)
      .map { before =>
        val keys = !before.columns.hasKeysOf(defaultLayout.columns)
        if (keys || !before.columns.hasValuesOf(defaultLayout.columns))
          checkRows(before, defaultLayout, rows, keys, values = false)
        defaultFamily
      }

  /**
   * The next store may have what this one used; what is read of this one from now on gets new
   * encoders.
   */
  def giveBack(): Unit = {
    default.giveBack()
    others.values.foreach(_.giveBack())
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

  /** Returns a second codec of the default family, for another thread. */
  def another(): RowCodec = new RowCodec(defaultLayout, encoders)

  /** Returns second codecs of families of a version but for the default one, for another thread. */
  def anotherOfEach(families: Seq[Family]): Seq[RowCodec] =
    families.filter(_.id != defaultFamily.id)
      .map(family => new RowCodec(encoders.layoutOf(family), encoders, declared = false))

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

  /**
   * Makes a family known that is about to be written or read. What is encoded from now on is so by
   * the given spec, whatever the version says of the family.
   *
   * @param nextId for a family that the version does not have
   * @param rows of a family of the version, by its id
   * @return the family, where the version does not describe it so
   * @throws Exception named, when the version keeps its rows in another way
   */
  def declare(
      name: String,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      multiValue: Boolean,
      internal: Boolean,
      nextId: => Int,
      rows: Int => RowIterator): Option[Family] = {
    val before = others.get(name)
    val isDefault = name == StateStore.DEFAULT_COL_FAMILY_NAME
    val known = if (isDefault) Some(defaultFamily) else before.map(_.family)
    val id = known.fold(nextId)(_.id)
    val layout =
      FamilyLayout(id, name, valueSchema, spec, multiValue, internal, defaultLayout.encoding)
    val wanted = layout.family
    known.foreach { have =>
      if (describe(have) != describe(wanted)) {
        throw StoreErrors.otherFamily(name, describe(have), describe(wanted))
      }
    }
    if (isDefault) None
    else {
      val ofReader = before.filterNot(_.hasKeysOf(layout)).map(_.layout)
        .flatMap(KeyShape.ofReader(_, layout))
      val used = ofReader.getOrElse(layout)
      before.foreach { codec =>
        val keys = !codec.hasKeysOf(used)
        val values = !RowEncoding.isAvro(wanted) && !codec.layout.columns.hasValuesOf(used.columns)
        if (keys || values) checkRows(codec.layout, used, rows(id), keys, values)
      }
      if (!before.exists(_.isDeclaredAs(used))) others(name) = new RowCodec(used, encoders)
      if (ofReader.isDefined || known.contains(wanted)) None else Some(wanted)
    }
  }

  /** Rows of a family whose description names other columns: that may be wrong where they are right. */
  private def checkRows(
      written: FamilyLayout,
      now: FamilyLayout,
      rows: RowIterator,
      keys: Boolean,
      values: Boolean): Unit = {
    val check = new FamilyCheck(now.family)
    val key, value = new Slice
    while (rows.next(key, value)) {
      if (keys && !fitsKey(check, key)) {
        if (!written.namesKey) throw StoreErrors.otherKeys(now.family.name)
        throw otherColumns(written, now)
      }
      if (values && !fitsValue(check, value)) throw otherColumns(written, now)
    }
  }

  private def fitsKey(check: FamilyCheck, key: Slice): Boolean =
    check.key(
      key.array,
      key.offset + RowCodec.FamilyBytes,
      key.length - RowCodec.FamilyBytes) == null

  private def fitsValue(check: FamilyCheck, value: Slice): Boolean =
    if (!check.family.multiValue) check.value(value.array, value.offset, value.length) == null
    else {
      MultiValue.elements(value.array, value.offset, value.length)
        .forall(element => check.value(element, 0, element.length) == null)
    }

  private def otherColumns(written: FamilyLayout, now: FamilyLayout): Throwable =
    StoreErrors.otherColumns(
      now.family.name,
      ColumnChanges.inWords(written.columns, now.columns))

  /** Describes the properties that decide how bytes are decoded. */
  private def describe(family: Family): String =
    s"encoder ${family.kind.name}${family.params.mkString("(", ",", ")")}" +
      (if (RowEncoding.isAvro(family)) ", Avro" else "") +
      (if (family.multiValue) ", several values a key" else ", one value a key")

  /** Ids are never used again: the next is above every one that is known. */
  def nextId(everUsed: Int): Int =
    math.max(everUsed, (others.values.map(_.family.id) ++ Seq(0)).max) + 1

  def forget(name: String): Unit = { others.remove(name); () }

  private def unsupported(operation: String) =
    StateStoreErrors.unsupportedOperationException(
      operation,
      "multiple column families is disabled in RedisStateStoreProvider")
}
