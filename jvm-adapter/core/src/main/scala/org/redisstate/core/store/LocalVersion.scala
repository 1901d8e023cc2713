package org.redisstate.core.store

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.{Entry, Family, Header, Tombstone}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Content, Expiry, KeyHash, Layer, RowIterator, Slice}
import org.redisstate.core.protocol.SegmentGone

/** A delta since the last snapshot. */
private[store] final case class DeltaSize(version: Long, bytes: Long)

/**
 * A hot run since the last snapshot.
 *
 * @param merged versions that it has the changes of
 */
private[store] final case class HotRunSize(version: Long, bytes: Long, merged: Int)

/**
 * Sizes that decide when the next snapshot, or hot run, is due.
 *
 * @param snapshotBytes of the newest snapshot below a version, 0 if there is none
 * @param deltas since that snapshot, newest first; those that the hot run has may be missing
 */
private[store] final case class History(
    snapshotBytes: Long,
    deltas: List[DeltaSize],
    hotRun: Option[HotRunSize] = None) {
  import History._

  /** Deltas that no hot run has. */
  private def unmerged: List[DeltaSize] =
    hotRun.fold(deltas)(r => deltas.takeWhile(_.version > r.version))
  private def bytesOf(some: List[DeltaSize]): Long = some.iterator.map(_.bytes).sum

  /** Bytes of what has changed since the snapshot. */
  def changedBytes: Long = hotRun.fold(0L)(_.bytes) + bytesOf(unmerged)
  def plus(delta: DeltaSize): History = copy(deltas = delta :: deltas)
  def since(snapshotVersion: Long, bytes: Long): History =
    History(
      bytes,
      deltas.filter(_.version > snapshotVersion),
      hotRun.filter(_.version > snapshotVersion))

  /** Returns whether what has changed weighs more than half of the snapshot. */
  def isDue: Boolean = {
    val count = hotRun.fold(0)(_.merged) + unmerged.size
    count >= DeltasMin && (changedBytes * 2 > snapshotBytes || count >= DeltasMax)
  }

  /** Returns whether the deltas since the last hot run weigh more than half of it. */
  def isHotRunDue: Boolean = {
    val newer = unmerged
    newer.size >= DeltasMin &&
    (bytesOf(newer) * 2 > hotRun.fold(0L)(_.bytes) || newer.size >= HotRunDeltasMax)
  }
}

private[core] object History {
  val DeltasMin = 4
  val DeltasMax = 200
  val HotRunDeltasMax = 32
  private[store] val Empty: History = History(0, Nil)
}

/**
 * Column families of a version.
 *
 * @param highestId of all that its lineage ever had
 */
private[store] final case class FamilyTable(families: Seq[Family], highestId: Int) {

  /** Returns the table after the changes of a header. */
  def after(header: Header): FamilyTable = header.families.fold(this) { now =>
    FamilyTable(now, header.highestId.getOrElse(now.map(_.id).max))
  }

  /** Returns whether rows of this table and of the next one have, or lack, an expiry alike. */
  def expiresLike(next: FamilyTable): Boolean =
    next.families.forall(now => families.find(_.id == now.id).forall(_.ttl == now.ttl))
}

private[store] object FamilyTable {
  val Empty: FamilyTable = FamilyTable(Nil, 0)
}

/**
 * Rows of a version.
 *
 * @param all in all families
 * @param internal of them, those of internal families
 */
private[store] final case class LiveRows(all: Long, internal: Long)

private[store] object LiveRows {
  val None: LiveRows = LiveRows(0, 0)
  def of(entry: Entry): LiveRows = LiveRows(entry.live, entry.internal)
}

/**
 * One version in executor memory. Its rows never change; how they are kept does: compaction and
 * reloading put an equal content in the place of the old one. Expired rows, which no reader finds,
 * may be missing from it.
 *
 * @param initialLive number of rows by the entry of the version; an upper bound where rows expire
 * @param timeS time of the version, 0 where no family has a time to live
 * @param countedFrom version whose number of rows is part of `initialLive`; none for a loaded version
 */
private[store] final class LocalVersion(
    val pin: Pin,
    initialLive: LiveRows,
    val table: FamilyTable,
    initial: Content,
    initialHistory: History,
    reload: Pin => Content,
    val timeS: Long = 0,
    private[store] val countedFrom: Option[Pin] = None) {
  @GuardedBy("this") @volatile private var current: Content = initial
  @GuardedBy("VersionCache") @volatile private[store] var history: History = initialHistory
  @GuardedBy("VersionCache") @volatile private var rowsLive = initialLive
  def families: Seq[Family] = table.families
  val hashOf: KeyHash = KeyHash.of(families)

  /** Expiry of its rows. */
  val expiry: Expiry = Expiry(timeS, families)

  /** Number of rows, an upper bound where rows expire. */
  def live: LiveRows = rowsLive

  /** Stops counting expired rows that a newer content does not have. */
  private[store] def uncount(expired: Long): Unit =
    rowsLive = rowsLive.copy(all = math.max(rowsLive.internal, rowsLive.all - expired))

  /** Returns whether all rows are of one unordered family without lists. */
  def hasOneHashedFamily: Boolean = families match {
    case Seq(one) => !one.multiValue && !one.kind.ordered
    case _ => false
  }

  /** Its rows; read again where they were dropped. */
  def content: Content = {
    val here = current
    if (here != null) here
    else {
      replace(null, reload(pin))
      content
    }
  }

  /** Its rows, unless they were dropped. */
  def here: Option[Content] = Option(current)

  /**
   * Drops rows that only memory has, if the version can be read again from Redis, block by block.
   */
  def forget(): Unit = synchronized {
    if (current != null && current.isHeld) current = null
  }

  /** Replaces `old` by an equal content; does nothing if another thread was first. */
  def replace(old: Content, now: Content): Unit = synchronized {
    if (current eq old) current = now
  }

  /** Resolves the version again, unless that was done since `old` was current. */
  def renew(old: Content): Unit = if (current eq old) replace(old, reload(pin))

  def get(hash: Int, key: Array[Byte], length: Int, out: Slice): Boolean =
    try content.get(hash, key, 0, length, out)
    catch { case _: SegmentGone => read(_.get(hash, key, 0, length, out)) }

  def contains(hash: Int, key: Array[Byte], length: Int): Boolean =
    read(_.contains(hash, key, 0, length))

  def get(key: Array[Byte], length: Int, out: Slice): Boolean =
    get(hashOf(key, 0, length), key, length, out)

  def contains(key: Array[Byte], length: Int): Boolean =
    contains(hashOf(key, 0, length), key, length)

  /** Reads the value of a row that is not expired, without its expiry. */
  def visible(key: Array[Byte], length: Int, out: Slice): Boolean =
    get(key, length, out) && expiry.show(key, out)

  /** Returns the rows of a family that are not expired, without their expiry. */
  def visibleRows(family: Int): RowIterator = expiry.shown(family, rows(family))

  /** Returns a version without rows in the place of this one, for a whole new version on top of it. */
  def emptied(times: WriteTimes): LocalVersion =
    new LocalVersion(
      pin,
      LiveRows.None,
      table.copy(families = families.map(times.described)),
      Content.empty(),
      History.Empty,
      _ => Content.empty(),
      timeS)

  /** Returns all rows of a family, in key order for an ordered family. */
  def rows(family: Int): RowIterator =
    if (hashOf.ordered(family)) rangeScan(Tombstone(family, None, None), Nil, hashOf)
    else scan(_.iterator(family, ordered = false, hashOf))

  /**
   * Rows for a pass over a family, with layers of a write set over them; what there is room for is
   * here before the first row is given out.
   */
  def scan(body: Content => RowIterator): RowIterator = new LocalVersion.Scan(this, body)

  /** Rows of a range, with layers of a write set over them; of an ordered family, as they are asked for. */
  def rangeScan(range: Tombstone, newest: List[Layer], families: KeyHash): RowIterator =
    if (families.ordered(range.family)) new OrderedRange(this, range, newest, families)
    else scan(_.over(newest).rangeScan(range, families))

  /** Runs a read; when a segment under it was replaced meanwhile, resolves the version again. */
  def read[A](body: Content => A): A = {
    var tries = 0
    while (true) {
      val used = content
      try return body(used)
      catch {
        case e: SegmentGone =>
          tries += 1
          if (tries > LocalVersion.ReloadsMax) throw e
          replace(used, reload(pin))
      }
    }
    throw new IllegalStateException
  }
}

/**
 * Rows of an ordered family; when a segment under them was replaced in the meantime, it goes on
 * after the last row.
 */
private[store] final class OrderedRange(
    version: LocalVersion,
    range: Tombstone,
    newest: List[Layer],
    families: KeyHash)
    extends RowIterator {
  private var used: Content = _
  private var rows: RowIterator = from(range)

  /** The encoded key of the last row. */
  private var last: Array[Byte] = _
  private var lastLength = 0

  override def next(key: Slice, value: Slice): Boolean = {
    var tries = 0
    while (true) {
      try {
        val found = rows.next(key, value)
        if (found) remember(key)
        return found
      } catch {
        case e: SegmentGone =>
          tries += 1
          if (tries > LocalVersion.ReloadsMax) throw e
          version.renew(used)
          rows = from(if (last == null) range else range.copy(from = Some(keyBehindLast)))
      }
    }
    throw new IllegalStateException
  }

  private def remember(key: Slice): Unit = {
    val length = key.length - OrderedRange.FamilyBytes
    if (last == null || last.length < length) last = new Array[Byte](2 * length + 16)
    System.arraycopy(key.array, key.offset + OrderedRange.FamilyBytes, last, 0, length)
    lastLength = length
  }

  /** Smallest encoded key after that of the last row. */
  private def keyBehindLast: Array[Byte] = java.util.Arrays.copyOf(last, lastLength) :+ 0.toByte

  private def from(rest: Tombstone): RowIterator = version.read { content =>
    used = content
    content.over(newest).rangeScan(rest, families)
  }
}

private object OrderedRange {
  private val FamilyBytes = 2
}

private[store] object LocalVersion {
  val ReloadsMax = 3

  /**
   * Rows of a pass. That a segment was replaced before the first row came resolves the version
   * again; later it ends the task, since rows in no order cannot be gone on with.
   */
  private final class Scan(version: LocalVersion, body: Content => RowIterator)
      extends RowIterator {
    private var used: Content = _
    private var rows = start()
    private var tries = ReloadsMax
    private var hasBegun = false

    override def next(key: Slice, value: Slice): Boolean = {
      while (true) {
        try {
          val found = rows.next(key, value)
          hasBegun = true
          return found
        } catch {
          case _: SegmentGone if !hasBegun && tries > 0 =>
            tries -= 1
            version.renew(used)
            rows = start()
          case e: SegmentGone =>
            throw new UnavailableException(
              s"scan version ${version.pin.version}: ${e.segment.ident} was replaced while its rows were " +
                "read, and they were not all in memory. Spark runs the task again. If this " +
                "happens often, give the executor a larger localMemory.")
        }
      }
      throw new IllegalStateException
    }

    private def start(): RowIterator = version.read { content =>
      used = content
      content.base.loadForPass()
      body(content)
    }
  }
}
