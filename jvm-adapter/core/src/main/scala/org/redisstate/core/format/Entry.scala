package org.redisstate.core.format

import org.redisstate.core.errors.FormatException
import org.redisstate.core.ids.{Keys, PartitionId, Pin}

/**
 * Manifest entry of a segment (docs/format.md, section 3).
 *
 * @param live rows of the version, all families
 * @param internal of them, those of internal families
 * @param time of the version, seconds since 1970; 0 where no family has a time to live
 */
final case class Entry(
    ref: String,
    rows: Long,
    live: Long,
    blocks: Int,
    bytes: Long,
    buckets: Int,
    checksum: Long,
    complete: Boolean,
    header: Boolean,
    internal: Long = 0,
    time: Long = 0) {
  def text: String = {
    val flags =
      (if (complete) "c" else "") + (if (header) "h" else "") + (if (time > 0) "t" else "")
    val more = (if (internal > 0) s" $internal" else "") + (if (time > 0) s" $time" else "")
    s"$ref $rows $live $blocks $bytes $buckets $checksum$more ${if (flags.isEmpty) "-" else flags}"
  }
}

object Entry {
  val BucketsMax: Int = 1 << 20
  private val ChecksumMax = 0xffffffffL
  private val TimeMax = 0xfffffffeL
  private val Flags =
    Set("-", "c", "h", "t", "ch", "ct", "ht", "cht")

  def parse(text: String): Entry = {
    def bad(): Nothing =
      throw new FormatException(s"a manifest entry cannot be read: ${text.take(200)}")
    text.split(" ", -1) match {
      case Array(ref, rows, live, blocks, bytes, buckets, checksum, more @ _*)
          if more.nonEmpty && more.length <= 3 =>
        val flags = more.last
        if (!Flags(flags)) bad()
        val isTimed = flags.contains('t')
        val counts = more.dropRight(if (isTimed) 2 else 1)
        if (counts.length > 1 || more.length < (if (isTimed) 2 else 1)) bad()
        if (ref != "-" && !EntryText.isUid(ref)) bad()
        def number(word: String, max: Long): Long = {
          val value = EntryText.number(word)
          if (value < 0 || value > max) bad()
          value
        }
        val entry = Entry(
          ref,
          number(rows, Long.MaxValue),
          number(live, Long.MaxValue),
          number(blocks, Int.MaxValue).toInt,
          number(bytes, Long.MaxValue),
          number(buckets, BucketsMax).toInt,
          number(checksum, ChecksumMax),
          complete = flags.contains('c'),
          header = flags.contains('h'),
          counts.headOption.fold(0L)(number(_, Long.MaxValue)),
          if (isTimed) number(more(more.length - 2), TimeMax) else 0
        )
        val isCounted = counts.isEmpty || (entry.internal > 0 && entry.internal <= entry.live)
        val isTimely = !isTimed || entry.time > 0
        if (isCounted && isTimely && Integer.bitCount(entry.buckets) == 1) entry else bad()
      case _ => bad()
    }
  }
}

/**
 * A delta, snapshot or hot run named in a manifest.
 *
 * @param place where its blocks are
 * @param over version that a hot run stands on; None for other segments
 */
final case class Segment(
    isSnapshot: Boolean,
    version: Long,
    uid: String,
    entry: Entry,
    place: Place = Place.Own,
    over: Option[Pin] = None) {

  /** The checkpoint that it belongs to, if it is foreign; empty for the manifest's own. */
  def gen: String = place match {
    case Place.Foreign(gen) => gen
    case _ => ""
  }

  /** Partition that the segment belongs to; of a foreign segment in the other checkpoint. */
  def owner(id: PartitionId): PartitionId = if (gen.isEmpty) id else id.ofGen(gen)

  /** Its key in Redis, which signatures name even where the blocks are in a file. */
  def key(id: PartitionId): String = Keys.segment(owner(id), ident)

  /** Suffix of the segment's key after `P:`; part of every block's check. */
  def ident: String =
    if (isSnapshot) Segment.snapshotIdent(version, entry.ref)
    else if (isHotRun) Segment.hotRunIdent(version, entry.ref)
    else Segment.deltaIdent(version, uid)

  /** Its field of the manifest. */
  def field: String =
    if (isSnapshot) Segment.snapshotField(version, uid)
    else if (isHotRun) Segment.hotRunIdent(version, uid)
    else Segment.deltaIdent(version, uid)

  /** Its value in the manifest. */
  def text: String =
    over.fold(entry.text)(base => s"${base.version} ${base.uid} ${entry.text}")

  /** Returns whether it has all changes since a base. */
  def isHotRun: Boolean = over.nonEmpty

  /** Returns whether it has all rows of its version. */
  def isBase: Boolean = isSnapshot || entry.complete
}

object Segment {
  def deltaIdent(version: Long, uid: String): String = s"d:$version:$uid"

  /** Ident of a slice of a preview. */
  def sliceIdent(version: Long, uid: String, slice: Int): String = s"u:$version:$uid.$slice"
  def snapshotIdent(version: Long, writer: String): String = s"s:$version:$writer"
  def snapshotField(version: Long, uid: String): String = s"s:$version:$uid"

  /** @param name of the writer, in an ident; of the version's uid, in a field */
  def hotRunIdent(version: Long, name: String): String = s"r:$version:$name"

  private val HotRunText = "([1-9][0-9]{0,17}) (\\S+) (.*)".r

  /**
   * @param field manifest field, `d:`, `s:` or `r:`, then `<version>:<uid>`
   * @param place of the segment, as the manifest has it; empty for the partition's own key
   */
  def parse(field: String, entry: String, place: String = ""): Segment =
    field.split(":", -1) match {
      case Array(kind @ ("d" | "s" | "r"), version, uid)
          if EntryText.number(version) > 0 && EntryText.isUid(uid) =>
        val (over, text) =
          if (kind == "r") hotRunText(field, entry, version.toLong) else None -> entry
        val parsed = Entry.parse(text)
        if (kind != "d" && (parsed.ref == "-" || parsed.complete))
          throw new FormatException(s"the entry of ${field.take(200)} is that of a delta")
        Segment(kind == "s", version.toLong, uid, parsed, Place.parse(field, place), over)
      case _ => throw new FormatException(s"a manifest field cannot be read: ${field.take(200)}")
    }

  /** The base that a hot run stands on, and its entry. */
  private def hotRunText(field: String, value: String, version: Long): (Option[Pin], String) =
    value match {
      case HotRunText(base, uid, text) if base.toLong < version && EntryText.isUid(uid) =>
        Some(Pin(base.toLong, uid)) -> text
      case _ =>
        throw new FormatException(s"the hot run ${field.take(200)} stands on nothing below it")
    }
}
