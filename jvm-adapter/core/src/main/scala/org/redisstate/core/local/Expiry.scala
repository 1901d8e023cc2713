package org.redisstate.core.local

import org.redisstate.core.format.{Block, Family, RowBlock}

/**
 * Expiry of rows at one point in time (docs/format.md, section 15): the last four bytes of each
 * value, in families with a time to live. Thread-safe.
 *
 * @param timeS seconds since 1970
 * @param families ids of the families with a time to live
 */
final class Expiry private (timeS: Long, families: Set[Int]) {
  import Expiry._

  /** True if a family has a time to live. */
  val isOn: Boolean = families.nonEmpty
  private val isDefaultAlone = families == Set(0)

  /** Returns whether rows of a family have an expiry. */
  def of(family: Int): Boolean = isOn && (if (isDefaultAlone) family == 0 else families(family))

  /** Returns whether the row of a stored key has an expiry. */
  def ofKey(key: Array[Byte], offset: Int): Boolean = isOn && of(StoredKey.familyOf(key, offset))

  /** Returns whether a row with this value is expired. */
  def isOver(value: Array[Byte], offset: Int, length: Int): Boolean =
    expiryOf(value, offset, length) <= timeS

  /** Returns the expiry of a row with this value; None if it is over. */
  def left(value: Slice): Option[Long] =
    Some(expiryOf(value.array, value.offset, value.length)).filter(_ > timeS)

  /**
   * Removes the expiry from the value of a stored key, if it has one; @return whether the row is
   * not expired
   */
  def show(key: Array[Byte], value: Slice): Boolean = !ofKey(key, 0) || show(value)

  /** Removes the expiry from a value; @return whether the row is not expired */
  def show(value: Slice): Boolean =
    !isOver(value.array, value.offset, value.length) && {
      value.length -= Bytes
      true
    }

  /** Rows of a family without those that are expired, and without their expiry. */
  def shown(family: Int, rows: RowIterator): RowIterator =
    if (!of(family)) rows
    else (key, value) => {
      var found = rows.next(key, value)
      while (found && !show(value)) found = rows.next(key, value)
      found
    }

  /** Rows of a family without those that are expired, with their expiry. */
  def unexpired(family: Int, rows: RowIterator): RowIterator =
    if (!of(family)) rows
    else (key, value) => {
      var found = rows.next(key, value)
      while (found && isOver(value.array, value.offset, value.length)) found = rows.next(key, value)
      found
    }

  /** Rows of a bucket without those that are expired. */
  def kept(rows: RowBlock): RowBlock =
    if (!isOn || !(0 until rows.count).exists(isOver(rows, _))) rows
    else {
      val left = new RowBlock.Builder(rows.bytes.length)
      (0 until rows.count).foreach(i => if (!isOver(rows, i)) left.addFrom(rows, i))
      left.result()
    }

  private def isOver(rows: RowBlock, i: Int): Boolean =
    ofKey(rows.bytes, rows.keyOffset(i)) && !rows.isRemoved(i) &&
      isOver(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
}

object Expiry {

  /** Length of an expiry in bytes. */
  val Bytes: Int = 4

  /** Expiry of rows that do not expire. */
  val Never: Long = 0xffffffffL
  private val UnsignedMask = 0xffffffffL
  private val MillisPerSecond = 1000L

  /** Least number of steps of a time to live. */
  val StepsMin: Int = 128

  /** Least number of steps for a join, which writes all rows of a key again at each step. */
  val JoinStepsMin: Int = 4

  /** Expiry of versions without a time to live. */
  val None: Expiry = new Expiry(0, Set.empty)

  /** Returns the expiry of the rows of a version. */
  def apply(timeS: Long, families: Seq[Family]): Expiry =
    if (families.exists(_.ttl)) new Expiry(timeS, families.filter(_.ttl).map(_.id).toSet) else None

  /**
   * Returns the expiry of a row that is written at a time. It is rounded up, by less than a second or
   * one of the steps, so that rows have few different ones and blocks stay small.
   *
   * @param stepsMin least number of steps of the time to live
   */
  def after(timeS: Long, ttlMs: Long, stepsMin: Int = StepsMin): Long = {
    val ttlS = (ttlMs + MillisPerSecond - 1) / MillisPerSecond
    val step = math.max(1, java.lang.Long.highestOneBit(ttlS / stepsMin))
    math.min(Never - 1, (timeS + ttlS + step - 1) / step * step)
  }

  /** Removes the expiry from the value of a family with a time to live, and returns it. */
  def cut(value: Slice): Long = {
    val found = expiryOf(value.array, value.offset, value.length)
    value.length -= Bytes
    found
  }

  private def expiryOf(value: Array[Byte], offset: Int, length: Int): Long =
    Block.getInt(value, offset + length - Bytes) & UnsignedMask

  /** Buffer that puts an expiry behind a value. For one thread. */
  final class Stamp {
    private var stamped = new Array[Byte](256)

    /** The last value with its expiry; longer than them. */
    def bytes: Array[Byte] = stamped

    /** @return length of the value with its expiry */
    def apply(value: Array[Byte], offset: Int, length: Int, expiryS: Long): Int = {
      if (stamped.length < length + Bytes) stamped = new Array[Byte](2 * length + Bytes)
      System.arraycopy(value, offset, stamped, 0, length)
      Block.putInt(stamped, length, expiryS.toInt)
      length + Bytes
    }
  }
}

/**
 * Checks rows of a version in which families have a time to live.
 *
 * @param rules for the same rows without their expiry
 */
private[core] final class ExpiryValidator(rules: RowValidator, families: Seq[Family])
    extends RowValidator {
  private val expiry = Expiry(0, families)

  override def check(
      bytes: Array[Byte],
      keyOffset: Int,
      keyLength: Int,
      valueOffset: Int,
      valueLength: Int): String =
    if (!expiry.ofKey(bytes, keyOffset))
      rules.check(bytes, keyOffset, keyLength, valueOffset, valueLength)
    else if (valueLength < Expiry.Bytes) "its value is shorter than an expiry"
    else rules.check(bytes, keyOffset, keyLength, valueOffset, valueLength - Expiry.Bytes)

  override def columnChanges(family: Int): String = rules.columnChanges(family)
}
