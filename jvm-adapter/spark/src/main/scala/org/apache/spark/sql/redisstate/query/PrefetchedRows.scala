package org.apache.spark.sql.redisstate.query

import java.util

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.redisstate.stores.{RedisReads, RowsAhead}

/**
 * Rows of an operator's input in windows. While the rows of one window are handed on, the state of
 * the next one is read. Rows of a store without files are neither copied nor kept.
 *
 * @param store of the operator, which is open when the first row is asked for
 * @param keys makes the key of a row's state, or its prefix
 */
private[query] final class PrefetchedRows(
    rows: Iterator[InternalRow],
    store: () => Option[RedisReads],
    keys: () => UnsafeProjection,
    byPrefix: Boolean)
    extends Iterator[InternalRow] {
  import PrefetchedRows._

  private lazy val opened = store()
  private lazy val keyOf = {
    // Nothing is left of a window once the task has ended.
    Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => close()))
    keys()
  }

  /** True if the rest of the input passes through. */
  private var isPlain = false
  @volatile private var current, following = Option.empty[Window]

  /** True once the task has ended: a thread that sends rows to Python may go on for a moment. */
  @volatile private var isClosed = false

  /** Reads of the window that was made last, which may not be filled yet. */
  @volatile private var newest = Option.empty[RowsAhead]

  override def hasNext: Boolean = isWaiting || {
    // A window is closed behind its last row, also before rows that pass through.
    if (!isPlain || current.nonEmpty) moveOn()
    isWaiting || (isPlain && rows.hasNext)
  }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    current.filter(_ => isWaiting).fold(rows.next())(_.rows.poll())
  }

  private def isWaiting: Boolean = current.exists(!_.rows.isEmpty)

  private def moveOn(): Unit = {
    current.foreach(_.ahead.close())
    current = following.orElse(window())
    following = if (current.isEmpty) None else window()
    current.foreach(_.ahead.await())
  }

  /** Returns the next rows, whose state begins to be read; None at the end, or where none is in a file. */
  private def window(): Option[Window] =
    if (isPlain || !rows.hasNext) None
    else {
      val made = opened.flatMap(_.ahead(byPrefix)).map(filled)
      isPlain = made.isEmpty
      made
    }

  private def filled(ahead: RowsAhead): Window = {
    val kept = new util.ArrayDeque[InternalRow]
    var bytes = 0L
    newest = Some(ahead)
    if (isClosed) ahead.close()
    while (kept.size < RowsMax && bytes < BytesMax && !ahead.isFull && rows.hasNext) {
      val row = rows.next().copy()
      bytes += sizeOf(row)
      ahead.add(keyOf(row))
      kept.add(row)
    }
    ahead.start()
    Window(kept, ahead)
  }

  private def sizeOf(row: InternalRow): Int = row match {
    case unsafe: UnsafeRow => unsafe.getSizeInBytes
    case _ => 0
  }

  private def close(): Unit = {
    isClosed = true
    ((current ++ following).map(_.ahead) ++ newest).foreach(_.close())
  }
}

private object PrefetchedRows {
  private val RowsMax = 4096
  private val BytesMax = 4L << 20

  private final case class Window(rows: util.ArrayDeque[InternalRow], ahead: RowsAhead)
}
