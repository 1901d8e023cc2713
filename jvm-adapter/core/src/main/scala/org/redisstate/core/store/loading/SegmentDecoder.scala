package org.redisstate.core.store.loading

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format._
import org.redisstate.core.local.{ExpiryValidator, RowValidator, StoredKey}
import org.redisstate.core.protocol.SegmentIo

/** Checks everything of a partition's segments that comes over the wire. */
private[store] final class SegmentDecoder(io: SegmentIo, validator: RowValidator) {
  private val id = io.id

  /** Rows of a field, each of them checked. */
  def decode(
      segment: Segment,
      name: String,
      block: Array[Byte],
      families: Seq[Family]): RowBlock = {
    val rows = named(segment)(new SegmentReader(segment).rows(name, block))
    validated(segment, rows, listsOf(families), rulesOf(families))
  }

  private def rulesOf(families: Seq[Family]): RowValidator = {
    val rules = validator.of(families)
    if (families.exists(_.ttl)) new ExpiryValidator(rules, families) else rules
  }

  private def listsOf(families: Seq[Family]): Set[Int] =
    families.filter(_.multiValue).map(_.id).toSet

  private def validated(
      segment: Segment,
      rows: RowBlock,
      lists: Set[Int],
      rules: RowValidator): RowBlock = {
    var i = 0
    while (i < rows.count) {
      if (!rows.isRemoved(i)) {
        val key = rows.keyOffset(i)
        val list =
          rows.isAppended(i) || (lists.nonEmpty && lists(StoredKey.familyOf(rows.bytes, key)))
        if (list) validateElements(segment, rows, i, rules)
        else validate(segment, rows, i, rules, rows.valueOffset(i), rows.valueLength(i))
      }
      i += 1
    }
    rows
  }

  private def validateElements(
      segment: Segment,
      rows: RowBlock,
      i: Int,
      rules: RowValidator): Unit = {
    val from = rows.valueOffset(i)
    val elements = new MsgpackReader(rows.bytes, from, from + rows.valueLength(i))
    while (!elements.atEnd) {
      val length = named(segment)(elements.skipBin())
      validate(segment, rows, i, rules, elements.position - length, length)
    }
  }

  private def validate(
      segment: Segment,
      rows: RowBlock,
      i: Int,
      rules: RowValidator,
      valueOffset: Int,
      valueLength: Int): Unit = {
    val wrong =
      rules.check(rows.bytes, rows.keyOffset(i), rows.keyLength(i), valueOffset, valueLength)
    if (wrong != null) {
      val changes = rules.columnChanges(StoredKey.familyOf(rows.bytes, rows.keyOffset(i)))
      val found = s"a row does not fit the schema of the operator: $wrong"
      if (changes == null) damaged(segment, found)
      throw FormatException.ofColumns(changes, s"${segment.ident} of $id: $found.")
    }
  }

  /** Runs a read; adds segment and advice to an error of the format. */
  def named[A](segment: Segment)(read: => A): A =
    try read
    catch {
      case e: FormatException =>
        damaged(
          segment,
          e.getMessage.stripPrefix("[REDIS_FORMAT] ").stripSuffix(Block.Advice).stripSuffix("."))
    }

  /**
   * @throws org.redisstate.core.protocol.SegmentGone for a hot run, which no version needs
   */
  def damaged(segment: Segment, found: String): Nothing =
    if (segment.isHotRun) throw io.leaveOut(segment, s"$found.")
    else throw new FormatException(s"${segment.ident} of $id: $found.${Block.Advice}")
}
