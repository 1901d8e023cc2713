package org.redisstate.core.store

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format._
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.local._
import org.redisstate.core.protocol.PartitionClient

/** Reads segments of one partition into local form, checking everything that comes over the wire. */
private[store] final class SegmentLoader(client: PartitionClient, validator: RowValidator, counters: StoreCounters) {
  private val id: PartitionId = client.id

  def header(segment: Segment): Header =
    if (!segment.entry.header) Header.Empty
    else {
      val block = client.fetch(segment, Seq(Header.Field)).head
      if (block == null) throw damaged(segment, "its header is missing")
      supported(segment, Header.decode(Block.decode(segment.ident, Header.Field, block)))
    }

  /** A base whose buckets stay in Redis until they are touched. */
  def base(segment: Segment, header: Header): Base =
    Base.remote(
      segment.entry.buckets,
      (from, until) => {
        counters.bucketsLoaded.addAndGet((until - from).toLong)
        readBuckets(segment, header, from, until).map(validated(segment, _))
      })

  /** A whole delta; count and checksum are compared with its entry. */
  def layer(segment: Segment): (Header, Layer) = {
    val entry = segment.entry
    val layer = new Layer(math.min(entry.rows, 1 << 24).toInt)
    if (entry.blocks == 0) return (Header.Empty, layer)
    val head = header(segment)
    val names = (0 until entry.buckets).flatMap(b => partNames(head, b)) ++
      (if (entry.header) Seq(Header.Field) else Nil)
    val fields = names.zip(client.fetch(segment, names)).collect { case (n, b) if b != null => EncodedField(n, b) }
    if (fields.size != entry.blocks) throw damaged(segment, s"${fields.size} of ${entry.blocks} blocks are there")
    if (SegmentWriter.checksum(fields) != entry.checksum) throw damaged(segment, "the checksum does not match")
    head.tombstones.foreach(t => layer.clear(t.family))
    val hashOf = KeyHash.of(head.families.getOrElse(Nil) ++ knownFamilies)
    fields.filterNot(_.name == Header.Field).foreach { field =>
      val rows = validated(segment, RowBlock.parse(Block.decode(segment.ident, field.name, field.block)))
      addAll(layer, rows, hashOf)
    }
    counters.bucketsLoaded.addAndGet(fields.size.toLong)
    (head, layer)
  }

  /** Family table of the version being loaded, oldest segment first. */
  @volatile private[store] var knownFamilies: Seq[Family] = Nil

  private def addAll(layer: Layer, rows: RowBlock, hashOf: KeyHash): Unit = {
    var i = 0
    while (i < rows.count) {
      val key = rows.keyOffset(i)
      val length = rows.keyLength(i)
      val hash = hashOf(rows.bytes, key, length)
      if (rows.isRemoved(i)) layer.remove(hash, rows.bytes, key, length)
      else layer.put(hash, rows.bytes, key, length, rows.bytes, rows.valueOffset(i), rows.valueLength(i))
      i += 1
    }
  }

  private def readBuckets(segment: Segment, header: Header, from: Int, until: Int): Array[RowBlock] = {
    val names = (from until until).map(b => partNames(header, b))
    val blocks = client.fetch(segment, names.flatten).iterator
    names.map { parts =>
      parts
        .map { name =>
          val block = blocks.next()
          if (block == null) RowBlock.Empty
          else RowBlock.parse(Block.decode(segment.ident, name, block))
        }
        .reduceLeft((older, newer) => RowBlock.merge(older, newer, dropRemoved = false))
    }.toArray
  }

  private def partNames(header: Header, bucket: Int): Seq[String] =
    bucket.toString +: (1 until header.parts.getOrElse(bucket, 1)).map(p => s"$bucket.$p")

  private def validated(segment: Segment, rows: RowBlock): RowBlock = {
    var i = 0
    while (i < rows.count) {
      if (!rows.isRemoved(i)) {
        val wrong =
          validator.check(rows.bytes, rows.keyOffset(i), rows.keyLength(i), rows.valueOffset(i), rows.valueLength(i))
        if (wrong != null) throw damaged(segment, s"a row does not fit the schema of the operator: $wrong")
      }
      i += 1
    }
    rows
  }

  private def supported(segment: Segment, header: Header): Header = {
    val partial = header.tombstones.exists(t => t.from.nonEmpty || t.to.nonEmpty)
    val unknown = header.families.exists(_.exists(f => f.kind.ordered || f.multiValue))
    if (partial || unknown || header.ordered.nonEmpty) {
      throw new FormatException(s"${segment.ident} of $id uses ordered or multi-value families, which this " +
        "release cannot load. Use the release that wrote it.")
    }
    header
  }

  private def damaged(segment: Segment, found: String): FormatException =
    new FormatException(s"${segment.ident} of $id: $found. Nothing of it was used. Restore that Redis, or rewind " +
      s"the checkpoint below batch ${segment.version}.")
}
