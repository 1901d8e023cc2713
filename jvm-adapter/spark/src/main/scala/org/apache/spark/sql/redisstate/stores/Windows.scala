package org.apache.spark.sql.redisstate.stores

import java.util

import scala.util.control.NonFatal

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/**
 * Items in windows. While the items of one window are handed on, the state of the next one is read.
 * Items of a task without state in files are neither copied nor kept.
 *
 * @param ahead makes what reads the state of the next window; None where nothing is in a file
 * @param copied copies an item, which the iterator below may reuse
 * @param ended is called once behind the last item
 */
private[redisstate] final class Windows[A] private (
    items: Iterator[A],
    ahead: () => Option[StateAhead[A]],
    copied: A => A,
    bytesOf: A => Int,
    ended: () => Unit)
    extends Iterator[A]
    with Logging {
  import Windows._

  /** True if the rest of the items passes through. */
  private var isPlain = false
  private var hasBegun = false
  @volatile private var current, following = Option.empty[Window[A]]

  /** True once the task has ended: a thread that sends rows to Python may go on for a moment. */
  @volatile private var isClosed = false

  /** Reads of the window that was made last, which may not be filled yet. */
  @volatile private var newest = Option.empty[StateAhead[A]]

  override def hasNext: Boolean = isWaiting || {
    // A window is closed behind its last item, also before items that pass through.
    if (!isPlain || current.nonEmpty) moveOn()
    isWaiting || (isPlain && items.hasNext)
  }

  override def next(): A = {
    if (!hasNext) throw new NoSuchElementException
    current.filter(_ => isWaiting).fold(items.next())(_.items.poll())
  }

  private def isWaiting: Boolean = current.exists(!_.items.isEmpty)

  private def moveOn(): Unit = {
    current.foreach(_.ahead.close())
    current = following.orElse(window())
    following = if (current.isEmpty) None else window()
    current.foreach(_.ahead.await())
  }

  /** Returns the next items, whose state begins to be read; None at the end, or where none is in a file. */
  private def window(): Option[Window[A]] =
    if (isPlain) None
    else if (!items.hasNext) {
      if (hasBegun) ended()
      isPlain = true
      None
    } else {
      begin()
      val made = ahead().map(filled)
      isPlain = made.isEmpty
      made
    }

  /** Nothing is left of a window once the task has ended. */
  private def begin(): Unit = if (!hasBegun) {
    hasBegun = true
    Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => close()))
  }

  private def filled(reads: StateAhead[A]): Window[A] = {
    val kept = new util.ArrayDeque[A]
    var bytes = 0L
    newest = Some(reads)
    if (isClosed) reads.close()
    while (kept.size < ItemsMax && bytes < BytesMax && !reads.isFull && items.hasNext) {
      val item = copied(items.next())
      bytes += bytesOf(item)
      add(item, reads)
      kept.add(item)
    }
    reads.start()
    Window(kept, reads)
  }

  /** An item whose state cannot be named is left to the operator, which may not ask for it. */
  private def add(item: A, reads: StateAhead[A]): Unit =
    try reads.add(item)
    catch { case NonFatal(e) => logDebug("state of an item is not read ahead", e) }

  private def close(): Unit = {
    isClosed = true
    ((current ++ following).map(_.ahead) ++ newest).foreach(_.close())
  }
}

private[redisstate] object Windows {
  private val ItemsMax = 4096
  private val BytesMax = 4L << 20

  private final case class Window[A](items: util.ArrayDeque[A], ahead: StateAhead[A])

  /** Rows of an operator's input, unchanged and in order. */
  def ofRows(
      rows: Iterator[InternalRow],
      ahead: () => Option[StateAhead[InternalRow]],
      ended: () => Unit = () => ()): Iterator[InternalRow] =
    new Windows[InternalRow](rows, ahead, _.copy(), sizeOf, ended)

  /** Pairs of a scan, unchanged and in order. */
  def ofPairs(
      pairs: Iterator[UnsafeRowPair],
      ahead: () => Option[StateAhead[UnsafeRowPair]]): Iterator[UnsafeRowPair] =
    new Windows[UnsafeRowPair](
      pairs,
      ahead,
      pair => new UnsafeRowPair(pair.key.copy(), pair.value.copy()),
      pair => sizeOf(pair.key) + sizeOf(pair.value),
      () => ())

  private def sizeOf(row: InternalRow): Int = row match {
    case unsafe: UnsafeRow => unsafe.getSizeInBytes
    case _ => 0
  }
}
