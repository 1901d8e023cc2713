package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/** Manifest entry of a segment (docs/format.md, section 3). */
final case class Entry(
    ref: String,
    rows: Long,
    live: Long,
    blocks: Int,
    bytes: Long,
    buckets: Int,
    checksum: Long,
    complete: Boolean,
    header: Boolean) {
  def text: String = {
    val flags = (if (complete) "c" else "") + (if (header) "h" else "")
    s"$ref $rows $live $blocks $bytes $buckets $checksum ${if (flags.isEmpty) "-" else flags}"
  }
}

object Entry {
  val BucketsMax: Int = 1 << 20

  def parse(text: String): Entry = {
    def bad(): Nothing =
      throw new FormatException(s"a manifest entry cannot be read: ${text.take(200)}")
    text.split(' ') match {
      case Array(ref, rows, live, blocks, bytes, buckets, checksum, flags) =>
        val entry =
          try {
            Entry(
              ref,
              rows.toLong,
              live.toLong,
              blocks.toInt,
              bytes.toLong,
              buckets.toInt,
              checksum.toLong,
              flags.contains('c'),
              flags.contains('h'))
          } catch { case _: NumberFormatException => bad() }
        val known = flags == "-" || flags.forall(f => f == 'c' || f == 'h')
        val sane = entry.rows >= 0 && entry.live >= 0 && entry.blocks >= 0 && entry.bytes >= 0 &&
          entry.buckets >= 1 && entry.buckets <= BucketsMax && Integer.bitCount(entry.buckets) == 1
        if (known && sane) entry else bad()
      case _ => bad()
    }
  }
}

/** A delta or snapshot that a manifest names. */
final case class Segment(isSnapshot: Boolean, version: Long, uid: String, entry: Entry) {

  /** What follows `P:` in the segment's key; part of every block's check. */
  def ident: String =
    if (isSnapshot) Segment.snapshotIdent(version, entry.ref) else Segment.deltaIdent(version, uid)
}

object Segment {
  def deltaIdent(version: Long, uid: String): String = s"d:$version:$uid"
  def snapshotIdent(version: Long, writer: String): String = s"s:$version:$writer"
  def snapshotField(version: Long, uid: String): String = s"s:$version:$uid"

  /** @param field manifest field, `d:<version>:<uid>` or `s:<version>:<uid>` */
  def parse(field: String, entry: String): Segment = field.split(":", 3) match {
    case Array(kind @ ("d" | "s"), version, uid) if version.nonEmpty && version.forall(_.isDigit) =>
      Segment(kind == "s", version.toLong, uid, Entry.parse(entry))
    case _ => throw new FormatException(s"a manifest field cannot be read: ${field.take(200)}")
  }
}
