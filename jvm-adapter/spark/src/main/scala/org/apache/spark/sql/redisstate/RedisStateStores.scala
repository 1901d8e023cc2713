package org.apache.spark.sql.redisstate

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

import org.redisstate.core.local.{RowIterator, Slice}
import org.redisstate.core.store.{OpenVersion, WriteSession}

/** What reading and writing stores share: rows in and out of stored bytes. */
private[redisstate] trait RedisReads extends ReadStateStore {
  protected def codecs: CodecSet
  protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean
  protected def scan(family: Int): RowIterator
  protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator
  protected def checkReadable(): Unit

  private val slice = new Slice

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    checkReadable()
    require(key != null, "Key cannot be null")
    val codec = codecs.of("get", colFamilyName)
    val length = codec.encodeKey(key)
    if (lookup(codec.key, length, slice)) codec.decodeValue(slice) else null
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    checkReadable()
    val codec = codecs.of("iterator", colFamilyName)
    new StateStoreIterator(pairs(codec, scan(codec.family.id)))
  }

  override def prefixScan(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    checkReadable()
    val codec = codecs.of("prefixScan", colFamilyName)
    val length = codec.encodePrefix(prefixKey)
    new StateStoreIterator(pairs(codec, scanPrefix(codec.key, length)))
  }

  override def allColumnFamilyNames: Set[String] = codecs.names

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    multiValue("valuesIterator")

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    multiValue("prefixScanWithMultiValues")

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    multiValue("iteratorWithMultiValues")

  protected def multiValue(operation: String): Nothing =
    throw StateStoreErrors.unsupportedOperationException(operation, "RedisStateStoreProvider")

  private def pairs(codec: RowCodec, rows: RowIterator): Iterator[UnsafeRowPair] =
    new Iterator[UnsafeRowPair] {
      private val pair = new UnsafeRowPair
      private val key, value = new Slice
      private var ready = false
      private var ended = false

      override def hasNext: Boolean = {
        if (!ready && !ended) {
          ready = rows.next(key, value)
          ended = !ready
        }
        ready
      }

      override def next(): UnsafeRowPair = {
        if (!hasNext) throw new NoSuchElementException
        ready = false
        pair.withRows(codec.decodeKey(key), codec.decodeValue(value))
      }
    }
}

private[redisstate] final class RedisReadStateStore(
    val id: StateStoreId,
    private[redisstate] val opened: OpenVersion,
    override protected val codecs: CodecSet)
    extends RedisReads {
  codecs.learn(opened.families)

  override def version: Long = opened.pin.version
  override def abort(): Unit = ()
  override def release(): Unit = ()
  override protected def checkReadable(): Unit = ()
  override protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean =
    opened.get(key, length, out)
  override protected def scan(family: Int): RowIterator = opened.iterator(family)
  override protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator =
    opened.prefixScan(prefix, length)
  override def toString: String = s"RedisReadStateStore[$id, version=$version]"
}

/**
 * The store that an operator writes.
 *
 * @param afterCommit told of the new version
 */
private[redisstate] final class RedisStateStore(
    val id: StateStoreId,
    session: WriteSession,
    override protected val codecs: CodecSet,
    metricsSource: Metrics,
    forceSnapshot: Boolean,
    afterCommit: Long => Unit)
    extends StateStore
    with RedisReads {
  import RedisStateStore._

  @volatile private var phase: Phase = Updating
  private var lastMetrics: Option[StateStoreMetrics] = None
  codecs.learn(session.allFamilies)

  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ =>
    if (phase == Updating) abort()))

  override def version: Long = session.pin.version

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    checkUpdating()
    require(key != null, "Key cannot be null")
    require(value != null, "Cannot put a null value")
    val codec = codecs.of("put", colFamilyName)
    val keyLength = codec.encodeKey(key)
    val valueLength = codec.encodeValue(value)
    session.put(codec.key, keyLength, codec.value, valueLength)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    checkUpdating()
    require(key != null, "Key cannot be null")
    val codec = codecs.of("remove", colFamilyName)
    val length = codec.encodeKey(key)
    session.remove(codec.key, length)
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
    if (useMultipleValuesPerKey) multiValue("multipleValuesPerKey")
    if (!codecs.has(colFamilyName)) {
      val family = RowCodec.family(
        codecs.nextId(session.highestFamilyId),
        colFamilyName,
        keySchema,
        valueSchema,
        keyStateEncoderSpec,
        isInternal)
      session.defineFamily(family)
      codecs.learn(Seq(family))
    }
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

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    multiValue("putList")
  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    multiValue("merge")
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    multiValue("mergeList")

  override def commit(): Long =
    try {
      if (phase != Updating) throw outOfOrder(s"Cannot commit after $phase")
      val pin = session.commit()
      phase = Committed
      lastMetrics = Some(currentMetrics())
      afterCommit(pin.version)
      pin.version
    } catch {
      case e: StateStoreOperationOutOfOrder => throw e
      case e: Throwable => throw StoreErrors.cannotCommit(toString, e)
    }

  override def abort(): Unit =
    if (phase == Updating) {
      phase = Aborted
      session.abort()
    }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = phase == Committed

  override def metrics: StateStoreMetrics = lastMetrics.getOrElse(currentMetrics())

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    StateStoreCheckpointInfo(id.partitionId, version + 1, None, None)

  override protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean =
    session.get(key, length, out)
  override protected def scan(family: Int): RowIterator = session.iterator(family)
  override protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator =
    session.prefixScan(prefix, length)
  override protected def checkReadable(): Unit =
    if (phase == Aborted) throw outOfOrder(s"Cannot read after $phase")

  override def toString: String = s"RedisStateStore[$id, version=$version]"

  private def currentMetrics(): StateStoreMetrics = {
    val custom =
      metricsSource.sinceLast() + (Metrics.forceSnapshot -> (if (forceSnapshot) 1L else 0L))
    StateStoreMetrics(session.numKeys, session.localBytes, custom)
  }

  private def checkUpdating(): Unit =
    if (phase != Updating) throw outOfOrder(s"Cannot update after $phase")

  private def outOfOrder(message: String) = StateStoreErrors.stateStoreOperationOutOfOrder(message)
}

private[redisstate] object RedisStateStore {
  private sealed trait Phase
  private case object Updating extends Phase { override def toString = "UPDATING" }
  private case object Committed extends Phase { override def toString = "COMMITTED" }
  private case object Aborted extends Phase { override def toString = "ABORTED" }
}
