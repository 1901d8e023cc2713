package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.errors.StoreErrors
import org.apache.spark.sql.redisstate.rows.{CodecSet, RowCodec}
import org.apache.spark.util.NextIterator

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.local.Slice
import org.redisstate.core.store.{Change, ChangeIterator, OpenVersion}

/**
 * Requests of Spark's state reader beyond versions: `snapshotStartBatchId` and `readChangeFeed`.
 */
private[redisstate] trait VersionReplay extends StateStoreProvider {

  /** Opens a version, named by its id where Spark gave one. */
  protected def openVersion(version: Long, checkpointId: Option[String]): OpenVersion
  protected def codecsOf(opened: OpenVersion): CodecSet

  /**
   * Checks only that the first version exists. Any retained version may be the first: Redis makes a
   * version of immutable segments, and a snapshot that maintenance added is one of them.
   */
  protected def checkStart(start: Long, end: Long, checkpointId: Option[String]): Unit = {
    if (start < 1) throw QueryExecutionErrors.unexpectedStateStoreVersion(start)
    if (end < start) throw QueryExecutionErrors.unexpectedStateStoreVersion(end)
    openVersion(start, checkpointId)
    ()
  }

  protected def changes(
      start: Long,
      end: Long,
      family: Option[String],
      endId: Option[String]): ChangeFeed = {
    val name = family.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)
    def idOf(version: Long) = if (version == end) endId else None
    new ChangeFeed(start to end, name, v => changesOf(name, v, idOf(v)))
  }

  /** Returns the changes of a family; None where a version does not have it yet. */
  private def changesOf(
      family: String,
      version: Long,
      checkpointId: Option[String]): Option[(RowCodec, ChangeIterator)] = {
    val opened = openVersion(version, checkpointId)
    val codecs = codecsOf(opened)
    if (!opened.families.exists(_.name == family)) None
    else {
      val codec = codecs.of("getStateStoreChangeDataReader", family)
      try Some(codec -> opened.changes(codec.family.id))
      catch {
        case e: RedisStateException => throw StoreErrors.cannotLoad(stateStoreId, e)
      }
    }
  }
}

/**
 * The net changes of some versions, oldest version first, each key once a version; a list is a put
 * of its first element, and its other elements appended.
 */
private[redisstate] final class ChangeFeed(
    versions: Seq[Long],
    family: String,
    open: Long => Option[(RowCodec, ChangeIterator)])
    extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] {
  private val remaining = versions.iterator
  private var version = 0L
  private var rows: Option[(RowCodec, ChangeIterator)] = None
  private val key, value = new Slice

  /** Elements of the key before that are still to come. */
  private var elements: Iterator[UnsafeRow] = Iterator.empty
  private var keyRow: UnsafeRow = _

  override protected def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    while (true) {
      if (elements.hasNext) return record(RecordType.MERGE_RECORD, elements.next())
      val found = rows.flatMap { case (codec, changes) => changes.next(key, value).map(codec -> _) }
      found match {
        case Some((codec, change)) =>
          keyRow = codec.decodeKey(key)
          change match {
            case Change.Removed => return record(RecordType.DELETE_RECORD, null)
            case Change.Appended => elements = codec.decodeList(value)
            case Change.Put if codec.family.multiValue =>
              elements = codec.decodeList(value)
              return record(RecordType.PUT_RECORD, if (elements.hasNext) elements.next() else null)
            case Change.Put => return record(RecordType.PUT_RECORD, codec.decodeValue(value))
          }
        case None if remaining.hasNext =>
          version = remaining.next()
          rows = open(version)
        case None =>
          finished = true
          return null
      }
    }
    throw new IllegalStateException
  }

  /** Version v is what batch v - 1 made. */
  private def record(kind: RecordType.Value, row: UnsafeRow) = (kind, keyRow, row, version - 1)

  override protected def close(): Unit = ()

  override def toString: String =
    s"changes of '$family' in versions ${versions.head} to ${versions.last}"
}
