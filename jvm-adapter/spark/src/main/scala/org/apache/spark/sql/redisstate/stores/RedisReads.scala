package org.apache.spark.sql.redisstate.stores

import scala.util.control.NonFatal

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.{Family, FamilyKind}
import org.redisstate.core.local.{RowIterator, Slice}
import org.redisstate.core.store.Prefetch

/**
 * Conversion of rows to stored bytes and back, shared by stores for reading and for writing. Checks
 * calls as Spark's RocksDB provider does.
 */
private[redisstate] trait RedisReads extends ReadStateStore with ReadStoreShim {
  import RedisReads._

  protected def codecs: CodecSet
  protected def lookup(key: Array[Byte], length: Int, out: Slice): Boolean
  protected def contains(key: Array[Byte], length: Int): Boolean
  protected def scan(family: Int): RowIterator
  protected def scanPrefix(prefix: Array[Byte], length: Int): RowIterator
  protected def scanRange(
      family: Int,
      from: Option[Array[Byte]],
      to: Option[Array[Byte]]): RowIterator
  protected def checkReadable(): Unit

  protected def prefetch(): Option[Prefetch]

  /** Rows that the task will ask for; None where none is in a file. */
  private[redisstate] def ahead(): Option[RowsAhead] = prefetch().map(new RowsAhead(_))

  /** Codec of the default family for the thread that passes on the input of the operator. */
  private[redisstate] def codecOfInput: RowCodec =
    codecs.of("prefetch", StateStore.DEFAULT_COL_FAMILY_NAME)

  /** Codec of a family for the thread of the task; None where there is no such family. */
  private[redisstate] def codecOfTask(family: String): Option[RowCodec] =
    Option.when(codecs.has(family))(codecs.of("prefetch", family))

  /** Families of the version that was opened. */
  protected def familiesBelow: Seq[Family]

  /**
   * Families of the version that was opened but for the default one, with codecs of their own: for
   * another thread than that of the store.
   */
  private[redisstate] def otherFamilies: Seq[RowCodec] = codecs.anotherOfEach(familiesBelow)

  /**
   * Returns the value of a key for what reads ahead. An error is left to the task's own request.
   */
  private[redisstate] def peek(codec: RowCodec, key: UnsafeRow): Option[UnsafeRow] =
    try {
      val length = codec.encodeKey(key)
      Option.when(lookup(codec.key, length, slice))(codec.decodeOwnValue(slice))
    } catch { case NonFatal(_) => None }

  /** Iterators over the pairs of scans, by family. */
  private var followed =
    Map.empty[String, Iterator[UnsafeRowPair] => Iterator[UnsafeRowPair]]

  /** Passes the pairs of each scan of a family through `over`. */
  private[redisstate] def follow(
      colFamilyName: String,
      over: Iterator[UnsafeRowPair] => Iterator[UnsafeRowPair]): Unit =
    followed += colFamilyName -> over

  /** Returns whether a scan returns the rows of one prefix consecutively. */
  protected def groupsPrefixes: Boolean

  private val slice = new Slice

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    val codec = ready("get", key, colFamilyName)
    val length = codec.encodeKey(key)
    try if (lookup(codec.key, length, slice)) codec.decodeOwnValue(slice) else null
    catch { case e: RedisStateException => throw cannotUse(e) }
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = {
    require(keys != null && keys.forall(_ != null), "Keys cannot be null")
    codecs.of("multiGet", colFamilyName)
    keys.iterator.map(get(_, colFamilyName))
  }

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = {
    val codec = ready("keyExists", key, colFamilyName)
    val length = codec.encodeKey(key)
    asked(contains(codec.key, length))
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    val codec = ready("valuesIterator", key, colFamilyName)
    needLists(codec, "valuesIterator")
    val length = codec.encodeKey(key)
    val list = new Slice
    asked(if (lookup(codec.key, length, list)) codec.decodeList(list) else Iterator.empty)
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("iterator", colFamilyName)
    val pairs = asked(new Pairs(id, codec, scan(codec)))
    new StateStoreIterator(
      followed.get(colFamilyName).fold[Iterator[UnsafeRowPair]](pairs)(_(pairs)))
  }

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("iteratorWithMultiValues", colFamilyName)
    needLists(codec, "iteratorWithMultiValues")
    new StateStoreIterator(asked(new ElementPairs(id, codec, scan(codec))))
  }

  override def prefixScan(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("prefixScan", colFamilyName)
    new StateStoreIterator(asked(new Pairs(id, codec, prefixRows(codec, prefixKey))))
  }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("prefixScanWithMultiValues", colFamilyName)
    needLists(codec, "prefixScanWithMultiValues")
    new StateStoreIterator(asked(new ElementPairs(id, codec, prefixRows(codec, prefixKey))))
  }

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("rangeScan", colFamilyName)
    new StateStoreIterator(asked(new Pairs(id, codec, rangeRows(codec, startKey, endKey))))
  }

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val codec = ready("rangeScanWithMultiValues", colFamilyName)
    needLists(codec, "rangeScanWithMultiValues")
    new StateStoreIterator(asked(new ElementPairs(id, codec, rangeRows(codec, startKey, endKey))))
  }

  override def allColumnFamilyNames: Set[String] = codecs.names

  /**
   * Runs a request to Redis during the batch, and rethrows our errors in a form that users read to
   * the end.
   */
  protected def asked[A](work: => A): A =
    try work
    catch { case e: RedisStateException => throw cannotUse(e) }

  /** Callback for errors that a task fails with. */
  protected def failed: RedisStateException => Unit

  private def cannotUse(e: RedisStateException): Throwable = {
    failed(e)
    StoreErrors.cannotUse(id, e)
  }

  protected def ready(operation: String, key: UnsafeRow, colFamilyName: String): RowCodec = {
    require(key != null, "Key cannot be null")
    ready(operation, colFamilyName)
  }

  private def ready(operation: String, colFamilyName: String): RowCodec = {
    checkReadable()
    codecs.of(operation, colFamilyName)
  }

  protected def needLists(codec: RowCodec, operation: String): Unit =
    if (!codec.family.multiValue) {
      throw new IllegalStateException(
        s"$operation requires a column family that supports multiple values for a single key")
    }

  private def scan(codec: RowCodec): RowIterator = {
    val family = codec.family
    if (groupsPrefixes && family.kind == FamilyKind.Prefix) scanRange(family.id, None, None)
    else scan(family.id)
  }

  /** Returns rows in the order of the encoded keys. */
  private def prefixRows(codec: RowCodec, prefixKey: UnsafeRow): RowIterator = {
    require(codec.supportsPrefixScan, "Prefix scan requires setting prefix key!")
    if (codec.family.kind.ordered) {
      val prefix = codec.encodePrefixBound(prefixKey)
      scanRange(codec.family.id, Some(prefix), RowCodec.above(prefix))
    } else {
      val length = codec.encodePrefix(prefixKey)
      scanPrefix(codec.key, length)
    }
  }

  private def rangeRows(
      codec: RowCodec,
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow]): RowIterator = {
    require(
      codec.supportsRangeScan,
      "Range scan requires an encoder that supports range scanning!")
    val from = startKey.map(codec.encodeBound)
    val to = endKey.map(codec.encodeBound)
    (from, to) match {
      case (Some(first), Some(end))
          if codec.family.kind == FamilyKind.TimestampPostfix && sameKey(first, end) =>
        val length = codec.encodeKey(startKey.get) - TimestampBytes
        new Bounded(scanPrefix(codec.key, length), first, end)
      case _ => scanRange(codec.family.id, from, to)
    }
  }
}

private[redisstate] object RedisReads {
  private val TimestampBytes = 8

  /** Returns whether two encoded keys differ only in the timestamp at their end. */
  private def sameKey(a: Array[Byte], b: Array[Byte]): Boolean = {
    val rest = a.length - TimestampBytes
    a.length == b.length && java.util.Arrays.equals(a, 0, rest, b, 0, rest)
  }

  /** Rows with `from` ≤ encoded key < `to` of other rows. */
  private final class Bounded(rows: RowIterator, from: Array[Byte], to: Array[Byte])
      extends RowIterator {
    override def next(key: Slice, value: Slice): Boolean = {
      var found = rows.next(key, value)
      while (found && !(compare(key, from) >= 0 && compare(key, to) < 0)) {
        found = rows.next(key, value)
      }
      found
    }

    private def compare(key: Slice, bound: Array[Byte]): Int =
      java.util.Arrays.compareUnsigned(
        key.array,
        key.offset + RowCodec.FamilyBytes,
        key.offset + key.length,
        bound,
        0,
        bound.length)
  }

  private def next(id: StateStoreId, rows: RowIterator, key: Slice, value: Slice): Boolean =
    try rows.next(key, value)
    catch { case e: RedisStateException => throw StoreErrors.cannotUse(id, e) }

  /** A pair for each row. */
  private final class Pairs(id: StateStoreId, codec: RowCodec, rows: RowIterator)
      extends Iterator[UnsafeRowPair] {
    private val pair = new UnsafeRowPair
    private val key, value = new Slice
    private var ready = false
    private var ended = false

    override def hasNext: Boolean = {
      if (!ready && !ended) {
        ready = RedisReads.next(id, rows, key, value)
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

  /** A pair for each element of each list. */
  private final class ElementPairs(id: StateStoreId, codec: RowCodec, rows: RowIterator)
      extends Iterator[UnsafeRowPair] {
    private val pair = new UnsafeRowPair
    private val key, value = new Slice
    private var elements: Iterator[UnsafeRow] = Iterator.empty

    override def hasNext: Boolean = {
      while (!elements.hasNext && RedisReads.next(id, rows, key, value))
        elements = codec.decodeList(value)
      elements.hasNext
    }

    override def next(): UnsafeRowPair = {
      if (!hasNext) throw new NoSuchElementException
      pair.withRows(codec.decodeKey(key), elements.next())
    }
  }
}
