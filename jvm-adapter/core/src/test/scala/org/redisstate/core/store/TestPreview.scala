package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import org.redisstate.core.format._
import org.redisstate.core.ids.Keys

/**
 * A preview as docs/format.md, section 16, has it, read without the code under test.
 *
 * @param slices their idents and entries, the newest first
 */
private[store] final case class TestPreview(
    p: TestPartition,
    version: Long,
    uid: String,
    number: Long,
    parent: String,
    epoch: String,
    slices: Seq[(String, Entry)]) {
  import TestPreview._

  /** The rows of a version with the changes of the preview, as hexadecimal digits. */
  def over(below: Map[String, String]): Map[String, String] =
    slices.reverse.foldLeft(below) { case (rows, (ident, entry)) => applied(rows, ident, entry) }

  /** Expiry of each slice in ms; -2 for one that is gone. */
  def expiriesMs: Seq[Long] =
    slices.map { case (ident, _) => p.raw.pttl(Keys.segment(p.id, ident)) }

  private def applied(
      rows: Map[String, String],
      ident: String,
      entry: Entry): Map[String, String] = {
    val blocks = p.raw.hgetAll(Keys.segment(p.id, ident).getBytes(UTF_8)).asScala.map {
      case (name, block) => new String(name, UTF_8) -> block
    }
    assert(blocks.size == entry.blocks && blocks.valuesIterator.map(_.length).sum == entry.bytes)
    val header = blocks.get(Header.Field)
      .fold(Header.Empty)(block => Header.decode(Block.decode(ident, Header.Field, block)))
    val kept = rows.filterNot { case (key, _) =>
      val bytes = java.util.HexFormat.of.parseHex(key)
      header.tombstones.exists(_.covers(bytes, 0, bytes.length))
    }
    val names =
      blocks.keysIterator.filter(_ != Header.Field).toSeq.sortBy(
        _.split('.').drop(1).headOption.fold(0)(_.toInt))
    names.foldLeft(kept) { (found, name) =>
      changed(found, RowBlock.parse(Block.decode(ident, name, blocks(name))))
    }
  }
}

private[store] object TestPreview {
  def of(p: TestPartition): Option[TestPreview] = Option(p.meta("u")).flatMap { text =>
    val parts = text.split('|')
    parts.head.split(' ') match {
      case Array(version, uid, number, parent, epoch, _) =>
        val slices = parts.tail.toSeq.map { slice =>
          val number = slice.takeWhile(_ != ' ')
          s"u:$version:$uid.$number" -> Entry.parse(slice.drop(number.length + 1))
        }
        Some(TestPreview(p, version.toLong, uid, number.toLong, parent, epoch, slices))
      case _ => None
    }
  }

  private def changed(rows: Map[String, String], block: RowBlock): Map[String, String] =
    (0 until block.count).foldLeft(rows) { (found, i) =>
      val key = Vectors.hex(block.bytes, block.keyOffset(i), block.keyLength(i))
      if (block.isRemoved(i)) found - key
      else {
        val value = Vectors.hex(block.bytes, block.valueOffset(i), block.valueLength(i))
        found.updated(key, if (block.isAppended(i)) found.getOrElse(key, "") + value else value)
      }
    }
}
