package org.redisstate.core.local

import org.redisstate.core.format.Family

/**
 * A reused view of bytes. The array under it is immutable from here on: it stays valid after
 * commit, abort and close.
 */
final class Slice {
  var array: Array[Byte] = Array.emptyByteArray
  var offset: Int = 0
  var length: Int = 0

  def set(array: Array[Byte], offset: Int, length: Int): Unit = {
    this.array = array
    this.offset = offset
    this.length = length
  }
}

/** Rows one after the other; the slices are overwritten by each call. */
trait RowIterator {
  def next(key: Slice, value: Slice): Boolean
}

/** Checks rows that come from Redis: their bytes are untrusted. */
trait RowValidator {

  /** Returns the validator for rows of a version with these families, for any thread. */
  def of(families: Seq[Family]): RowValidator = this

  /** Returns the fault of a row, or null; called once for each row of a decoded block. */
  def check(
      bytes: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      valueOffset: Int,
      valueLength: Int): String

  /**
   * Describes how the columns of a family differ from those that the version describes. Null if
   * they are equal; otherwise, rows that do not fit are undamaged.
   */
  def columnChanges(family: Int): String = null
}

object RowValidator {
  val None: RowValidator = (_, _, _, _, _) => null
}
