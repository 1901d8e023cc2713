package org.redisstate.core.store

import org.redisstate.core.errors.{UnavailableException, VersionExpiredException}
import org.redisstate.core.format.RowBlock
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Expiry, RowIterator, Slice}
import org.redisstate.core.protocol.{Opened, PartitionClient, SegmentGone}
import org.redisstate.core.store.loading.{LayerLoader, SegmentLoader, WholeSegment}

/**
 * Changes of a version: the rows of its delta, or else its difference to the version before it.
 * Reading changes nothing.
 */
private[store] final class VersionChanges(
    open: Long => LocalVersion,
    client: PartitionClient,
    loader: SegmentLoader,
    layers: LayerLoader) {
  import VersionChanges._

  /** @param opened the version, which is above 0 */
  def of(opened: LocalVersion, family: Int): ChangeIterator = {
    var tries = 0
    while (true) {
      try return delta(opened, family).getOrElse(difference(opened, family))
      catch {
        case e: SegmentGone =>
          tries += 1
          val what = s"read the changes of version ${opened.pin.version} of ${client.id}"
          if (client.reopen(opened.pin).segments.contains(e.segment)) throw e.lost(what)
          if (tries > TriesMax) {
            throw new UnavailableException(
              s"$what: ${e.segment.ident} was replaced meanwhile. Ask again.")
          }
      }
    }
    throw new IllegalStateException
  }

  private def delta(opened: LocalVersion, family: Int): Option[ChangeIterator] = {
    val version = opened.pin.version
    val parent = if (version == 1) Some(Pin.Empty) else parentOf(version)
    listing(opened, parent).segments.headOption
      .filter(s => !s.isSnapshot && !s.entry.complete && s.version == version)
      .flatMap { segment =>
        val head = loader.heads(Seq(segment)).head
        if (head.header.tombstones.exists(_.family == family)) None
        else {
          val changed = layers.layers(Seq(WholeSegment(head, opened.families)))
          val rows = changed.headOption.fold(RowBlock.Empty)(_.rowsOf(family))
          Some(new OfRows(rows, opened.expiry))
        }
      }
  }

  /** Returns the version before this one, so that Redis names the delta between the two. */
  private def parentOf(version: Long): Option[Pin] =
    try Some(client.open("", Some(version - 1), None, Nil).pin)
    catch { case _: VersionExpiredException => None }

  private def listing(opened: LocalVersion, parent: Option[Pin]): Opened = {
    val found = client.open("", Some(opened.pin.version), Some(opened.pin.uid), parent.toSeq)
    if (found.pin != opened.pin) {
      throw new UnavailableException(
        s"read the changes of version ${opened.pin.version} of ${client.id}: the version was " +
          "replaced meanwhile. Ask again.")
    }
    found
  }

  private def difference(opened: LocalVersion, family: Int): ChangeIterator =
    new Difference(open(opened.pin.version - 1), opened, family)
}

private object VersionChanges {
  private val TriesMax = 3

  private final class OfRows(rows: RowBlock, expiry: Expiry) extends ChangeIterator {
    private var i = -1

    override def next(key: Slice, value: Slice): Option[Change] = {
      i += 1
      if (i >= rows.count) None
      else {
        key.set(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        if (rows.isRemoved(i)) Some(Change.Removed)
        else {
          value.set(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
          // What a version has written is not expired in it.
          if (expiry.ofKey(rows.bytes, rows.keyOffset(i))) expiry.show(value): Unit
          Some(if (rows.isAppended(i)) Change.Appended else Change.Put)
        }
      }
    }
  }

  /** First what is new or other than before, then what is no more. */
  private final class Difference(before: LocalVersion, now: LocalVersion, family: Int)
      extends ChangeIterator {
    private val rows: RowIterator = now.visibleRows(family)

    /** Rows that have expired since are no change. */
    private val past = Expiry(math.max(before.timeS, now.timeS), before.families)
    private lazy val older: RowIterator = past.shown(family, before.rows(family))
    private val known = new Slice
    private var inRows = true

    override def next(key: Slice, value: Slice): Option[Change] = {
      while (inRows) {
        inRows = rows.next(key, value)
        if (inRows && !unchanged(key, value)) return Some(Change.Put)
      }
      while (older.next(key, value)) {
        if (!now.visible(bytes(key), key.length, known)) return Some(Change.Removed)
      }
      None
    }

    private def unchanged(key: Slice, value: Slice): Boolean =
      found(bytes(key), key.length) && java.util.Arrays.equals(
        known.array,
        known.offset,
        known.offset + known.length,
        value.array,
        value.offset,
        value.offset + value.length)

    private def found(key: Array[Byte], length: Int): Boolean =
      before.get(key, length, known) && past.show(key, known)

    private def bytes(key: Slice): Array[Byte] =
      java.util.Arrays.copyOfRange(key.array, key.offset, key.offset + key.length)
  }
}
