package org.apache.spark.sql.redisstate.stores

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}
import org.apache.spark.sql.types.StructType

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.Family
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Expiry, RowIterator, Slice}
import org.redisstate.core.store.{OpenVersion, Prefetch, WriteSession}

/** A version, open for reading. */
private[redisstate] final class RedisReadStateStore(
    val id: StateStoreId,
    private[redisstate] val opened: OpenVersion,
    override protected val codecs: CodecSet,
    override protected val failed: RedisStateException => Unit,
    override protected val groupsPrefixes: Boolean)
    extends RedisReads {
  codecs.learn(opened.families)

  override def version: Long = opened.pin.version
  override def abort(): Unit = ()
  override def release(): Unit = ()
  override protected def checkReadable(): Unit = ()

  override protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean =
    opened.get(key, length, out)
  override protected def prefetch(): Option[Prefetch] = opened.prefetch()
  override protected def familiesBelow: Seq[Family] = opened.families
  override protected def contains(key: Array[Byte], length: Int): Boolean =
    opened.contains(key, length)
  override protected def scan(family: Int): RowIterator = opened.iterator(family)
  override protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator =
    opened.prefixScan(prefix, length)
  override protected def scanRange(
      family: Int,
      from: Option[Array[Byte]],
      to: Option[Array[Byte]]): RowIterator =
    opened.rangeScan(family, from, to)

  /** Time of the version in seconds since 1970; None where no rows expire. */
  private[redisstate] def timeS: Option[Long] = opened.timeS

  /**
   * The rows of a family that have not expired, with their expiry; a row is valid until the next.
   */
  private[redisstate] def rowsWithExpiry(colFamilyName: String)
      : Iterator[(UnsafeRow, UnsafeRow, Long)] = {
    val codec = codecs.of("rowsWithExpiry", colFamilyName)
    val expires = opened.families.exists(one => one.id == codec.family.id && one.ttl)
    val rows = asked(opened.iteratorWithExpiry(codec.family.id))
    val key, value = new Slice
    Iterator.continually(asked(rows.next(key, value))).takeWhile(identity).map { _ =>
      val expiryS = if (expires) Expiry.cut(value) else Expiry.Never
      (codec.decodeKey(key), codec.decodeValue(value), expiryS)
    }
  }

  /** The lists of a family with lists by their keys; a row of a key is valid until the next. */
  private[redisstate] def lists(colFamilyName: String)
      : Iterator[(UnsafeRow, Iterator[UnsafeRow])] = {
    val codec = codecs.of("lists", colFamilyName)
    needLists(codec, "lists")
    val rows = asked(opened.iterator(codec.family.id))
    val key, value = new Slice
    Iterator.continually(asked(rows.next(key, value))).takeWhile(identity)
      .map(_ => (codec.decodeKey(key), codec.decodeList(value)))
  }

  /** Registers a family; a family that this version lacks is empty. */
  override def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    codecs.checkName("register_col_family", colFamilyName, isInternal)
    codecs.declare(
      colFamilyName,
      valueSchema,
      keyStateEncoderSpec,
      useMultipleValuesPerKey,
      isInternal,
      codecs.nextId(0),
      scan)
    ()
  }

  override def toString: String = s"RedisReadStateStore[$id, version=$version]"
}

/** Services of the provider that a store for writing needs. */
private[redisstate] trait StoreHost {

  /** Reports the new version before `commit` returns. */
  def committed(pin: Pin): Unit

  /** Returns whether Spark identifies versions by unique ids. */
  def withIds: Boolean

  /** The unique id of the version below, as Spark asked for it: it compares the two as text. */
  def baseId(pin: Pin): String
  def metrics(session: WriteSession): StateStoreMetrics

  /** Reports an error that a task fails with. */
  def failed(e: RedisStateException): Unit
}

/** Store that an operator writes. */
private[redisstate] class RedisStateStore(
    val id: StateStoreId,
    session: WriteSession,
    override protected val codecs: CodecSet,
    host: StoreHost)
    extends WriteStoreShim
    with RedisReads {
  import RedisStateStore._

  override protected val failed: RedisStateException => Unit = host.failed

  @volatile private var phase: Phase = InUpdate
  private var committed: Option[Pin] = None
  private var lastMetrics: Option[StateStoreMetrics] = None
  override protected val familiesBelow: Seq[Family] = session.allFamilies
  codecs.learn(familiesBelow)

  Option(TaskContext.get()).foreach { task =>
    task.addTaskCompletionListener[Unit](_ => if (phase == InUpdate) abort())
    // It may have failed while the store was loaded, by what another thread does for it.
    failureOf(task).foreach { failure =>
      abort()
      throw failure
    }
  }

  // A partition must not get rows of two forms: none is written before all were looked at.
  try asked(codecs.goOnWith(session.allFamilies, session.iterator(0))).foreach(session.defineFamily)
  catch {
    case e: Throwable =>
      abort()
      throw e
  }

  override def version: Long = session.pin.version

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    checkPut(key, value)
    val codec = codecs.of("put", colFamilyName)
    val keyLength = codec.encodeKey(key)
    val valueLength = codec.encodeValue(value)
    asked(session.put(codec.key, keyLength, codec.value, valueLength))
  }

  protected def checkPut(key: UnsafeRow, value: UnsafeRow): Unit = {
    checkUpdating()
    require(key != null, "Key cannot be null")
    require(value != null, "Cannot put a null value")
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    checkUpdating()
    require(key != null, "Key cannot be null")
    val codec = codecs.of("remove", colFamilyName)
    val length = codec.encodeKey(key)
    asked(session.remove(codec.key, length))
  }

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    checkUpdating()
    codecs.checkName("create_col_family", colFamilyName, isInternal)
    asked(
      codecs
        .declare(
          colFamilyName,
          valueSchema,
          keyStateEncoderSpec,
          useMultipleValuesPerKey,
          isInternal,
          codecs.nextId(session.highestFamilyId),
          scan)
        .foreach(session.defineFamily))
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    checkUpdating()
    codecs.checkName("remove_col_family", colFamilyName, internal = false)
    val found = codecs.has(colFamilyName)
    if (found) {
      session.removeFamily(codecs.of("remove_col_family", colFamilyName).family.id)
      codecs.forget(colFamilyName)
    }
    found
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = {
    val codec = listsToWrite("putList", key, values, colFamilyName)
    val keyLength = codec.encodeKey(key)
    val valueLength = codec.encodeList(values)
    asked(session.put(codec.key, keyLength, codec.value, valueLength))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    require(value != null, "Cannot merge a null value")
    append("merge", key, Array(value), colFamilyName)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    append("mergeList", key, values, colFamilyName)

  override def deleteRange(
      beginKey: UnsafeRow,
      endKey: UnsafeRow,
      colFamilyName: String): Unit = {
    checkUpdating()
    require(endKey != null, "End key cannot be null")
    val codec = ready("deleteRange", beginKey, colFamilyName)
    if (!codec.supportsDeleteRange) {
      throw new IllegalStateException(
        "deleteRange requires a RangeKeyScanStateEncoderSpec for ordered key encoding")
    }
    val from = codec.encodeBound(beginKey)
    asked(session.deleteRange(codec.family.id, Some(from), Some(codec.encodeBound(endKey))))
  }

  private def append(
      operation: String,
      key: UnsafeRow,
      values: Array[UnsafeRow],
      colFamilyName: String): Unit = {
    val codec = listsToWrite(operation, key, values, colFamilyName)
    val keyLength = codec.encodeKey(key)
    val length = codec.encodeList(values)
    asked(session.append(codec.key, keyLength, codec.value, length))
  }

  private def listsToWrite(
      operation: String,
      key: UnsafeRow,
      values: Array[UnsafeRow],
      colFamilyName: String): RowCodec = {
    checkUpdating()
    require(
      values != null && values.forall(_ != null),
      s"Cannot $operation a null value or a null array")
    val codec = ready(operation, key, colFamilyName)
    needLists(codec, operation)
    codec
  }

  override def commit(): Long =
    try {
      if (phase != InUpdate) throw outOfOrder(s"Cannot commit after $phase")
      val pin = session.commit()
      committed = Some(pin)
      phase = AfterCommit
      host.committed(pin)
      lastMetrics = Some(currentMetrics())
      codecs.giveBack()
      pin.version
    } catch {
      case e: StateStoreOperationOutOfOrder => throw e
      case e: Throwable =>
        Some(e).collect { case ours: RedisStateException => host.failed(ours) }
        throw StoreErrors.cannotCommit(id, e)
    }

  override def abort(): Unit =
    if (phase == InUpdate) {
      phase = AfterAbort
      session.abort()
    }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = phase == AfterCommit

  override def metrics: StateStoreMetrics = lastMetrics.getOrElse(currentMetrics())

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    if (host.withIds) {
      val pin = committed.getOrElse(
        throw outOfOrder("Cannot get checkpointInfo without committing the store"))
      val base = if (session.isAlone || version == 0) None else Some(host.baseId(session.pin))
      StateStoreCheckpointInfo(id.partitionId, pin.version, Some(pin.uid), base)
    } else StateStoreCheckpointInfo(id.partitionId, version + 1, None, None)

  override protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean =
    session.get(key, length, out)
  override protected def prefetch(): Option[Prefetch] = session.prefetch()
  override protected def contains(key: Array[Byte], length: Int): Boolean =
    session.contains(key, length)
  override protected def scan(family: Int): RowIterator = session.iterator(family)
  override protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator =
    session.prefixScan(prefix, length)
  override protected def scanRange(
      family: Int,
      from: Option[Array[Byte]],
      to: Option[Array[Byte]]): RowIterator =
    session.rangeScan(family, from, to)
  override protected def groupsPrefixes: Boolean = false
  override protected def checkReadable(): Unit =
    if (phase == AfterAbort) throw outOfOrder(s"Cannot read after $phase")

  override def toString: String = s"RedisStateStore[$id, version=$version]"

  private def currentMetrics(): StateStoreMetrics = host.metrics(session)

  private def checkUpdating(): Unit =
    if (phase != InUpdate) throw outOfOrder(s"Cannot update after $phase")

  private def outOfOrder(message: String) = StateStoreErrors.stateStoreOperationOutOfOrder(message)
}

private[redisstate] object RedisStateStore {

  /**
   * Returns the error that a task has failed with already: the task calls a new listener at once.
   */
  private def failureOf(task: TaskContext): Option[Throwable] = {
    var failure = Option.empty[Throwable]
    if (task.isFailed()) task.addTaskFailureListener((_, found) => failure = Some(found))
    failure
  }

  private sealed trait Phase
  private case object InUpdate extends Phase { override def toString = "UPDATING" }
  private case object AfterCommit extends Phase { override def toString = "COMMITTED" }
  private case object AfterAbort extends Phase { override def toString = "ABORTED" }
}
