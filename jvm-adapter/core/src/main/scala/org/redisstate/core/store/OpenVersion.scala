package org.redisstate.core.store

import java.nio.file.Path

import org.redisstate.core.format.{Family, Tombstone}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Expiry, KeyHash, RowIterator, Slice, StoredKey}

/**
 * A version, open for reading. Keys are stored keys: family id and encoded key, in a buffer of the
 * caller.
 *
 * @param held whether the run holds the partition already
 * @param isAlone whether it was loaded empty: what is written over it applies alone
 * @param byUid whether it was asked for by its uid
 * @param nextS time of the version that is written on top of it; 0 where its rows do not expire
 * @param forBatch whether a batch reads it, to which rows are absent that expire by the time of the next version
 */
final class OpenVersion private[store] (
    private[store] val store: VersionKeeper,
    private[store] val local: LocalVersion,
    private[store] val held: Boolean,
    private[store] val isAlone: Boolean = false,
    private[store] val byUid: Boolean = false,
    private[store] val nextS: Long = 0,
    forBatch: Boolean = false) {
  private val sinceNs = System.nanoTime()
  private val expiry =
    if (forBatch && nextS > 0) Expiry(nextS, local.families) else local.expiry

  def pin: Pin = local.pin

  /** Rows of the families that are not internal. */
  def numKeys: Long = local.live.all - local.live.internal
  def families: Seq[Family] = store.families(local)

  /** Time of this version in seconds since 1970; None where no rows expire. */
  def timeS: Option[Long] = Option.when(local.families.exists(_.ttl))(local.timeS)

  def get(key: Array[Byte], length: Int, out: Slice): Boolean =
    local.get(key, length, out) && expiry.show(key, out)

  /** A prefetch of rows of this version; None where none of them is in a file. */
  def prefetch(): Option[Prefetch] = store.prefetch(local)

  /** Returns all rows of a family, in key order for an ordered family. */
  def iterator(family: Int): RowIterator = expiry.shown(family, local.rows(family))

  /** Returns all rows of a family; of one with a time to live, with the expiry behind the value. */
  def iteratorWithExpiry(family: Int): RowIterator = expiry.unexpired(family, local.rows(family))

  def contains(key: Array[Byte], length: Int): Boolean =
    if (expiry.ofKey(key, 0)) get(key, length, new Slice) else local.contains(key, length)

  /** @param prefix stored bucketing bytes: family id, and what the family's kind says */
  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = KeyHash.ofPrefix(prefix, length)
    expiry.shown(StoredKey.familyOf(prefix, 0), local.read(_.prefixScan(hash, prefix, length)))
  }

  /** Rows with `from` ≤ encoded key < `to` in key order; None leaves that side open. */
  def rangeScan(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): RowIterator =
    expiry.shown(family, local.rangeScan(Tombstone(family, from, to), Nil, local.hashOf))

  /** Returns the rows of a family in which this version, above 0, differs from the one before. */
  def changes(family: Int): ChangeIterator = store.changes(local, family)

  /**
   * Begins to write the next version. Where rows begin to expire, or expire no more, it is written
   * as a whole: the first rows of the write set are those of this version.
   */
  def write(): WriteSession = write(WriteTimes(nextS, store.ttlMs))

  /**
   * Begins to write the next version of a store of a join, whose rows expire together with those of
   * other stores.
   *
   * @param batchS time of the batch, the same for all stores and attempts
   */
  def writeOfJoin(batchS: Long): WriteSession =
    write(WriteTimes(math.max(batchS, local.timeS), store.ttlMs, Expiry.JoinStepsMin))

  private def write(times: WriteTimes): WriteSession =
    if (local.families.forall(family => times.described(family) == family))
      session(local, times, isComplete = isAlone)
    else {
      val begun = session(local.emptied(times), times, isComplete = true)
      try begun.refill(families, iterator)
      catch {
        case e: Throwable =>
          begun.abort()
          throw e
      }
      begun
    }

  private def session(
      below: LocalVersion,
      times: WriteTimes,
      isComplete: Boolean): WriteSession =
    new WriteSession(
      store,
      below,
      held,
      isAlone,
      byUid,
      Pin.newUid(),
      sinceNs,
      times,
      isComplete)

  /**
   * Begins to fill a version that was loaded empty.
   *
   * @param uid of the version that the commit gives, None for a new one. No other content may ever have it, but several attempts at this one
   *   may. So an abort leaves the blocks, which another attempt may need; they expire by themselves.
   * @param timeS of the version, if its rows expire; the same for all attempts with one uid
   * @param disk folder for rows on their way to a file; None for that of the process
   */
  def fill(
      uid: Option[String],
      timeS: Option[Long] = None,
      disk: Option[Path] = None): FillSession =
    fill(uid, timeS, FillSession.StageBytes, disk)

  private[store] def fill(
      uid: Option[String],
      timeS: Option[Long],
      stageBytes: Int,
      disk: Option[Path]): FillSession =
    new FillSession(
      store,
      local,
      held,
      uid.getOrElse(Pin.newUid()),
      ownsUid = uid.isEmpty,
      timeS,
      stageBytes,
      disk)
}
