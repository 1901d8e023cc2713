package org.redisstate.core.store

import org.redisstate.core.format.{Family, Tombstone}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{KeyHash, RowIterator, Slice}

/**
 * A version, open for reading. Keys are stored keys: family id and encoded key, in a buffer of the
 * caller.
 *
 * @param held whether the run holds the partition already
 * @param isAlone whether it was loaded empty: what is written over it applies alone
 * @param byUid whether it was asked for by its uid
 */
final class OpenVersion private[store] (
    private[store] val store: VersionKeeper,
    private[store] val local: LocalVersion,
    private[store] val held: Boolean,
    private[store] val isAlone: Boolean = false,
    private[store] val byUid: Boolean = false) {
  private val sinceNs = System.nanoTime()

  def pin: Pin = local.pin

  /** Rows of the families that are not internal. */
  def numKeys: Long = local.live.all - local.live.internal
  def families: Seq[Family] = store.families(local)

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = local.get(key, length, out)

  /** Returns all rows of a family, in key order for an ordered family. */
  def iterator(family: Int): RowIterator = local.rows(family)

  def contains(key: Array[Byte], length: Int): Boolean = local.contains(key, length)

  /** @param prefix stored bucketing bytes: family id, and what the family's kind says */
  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = KeyHash.ofPrefix(prefix, length)
    local.read(_.prefixScan(hash, prefix, length))
  }

  /** Rows with `from` ≤ encoded key < `to` in key order; None leaves that side open. */
  def rangeScan(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): RowIterator =
    local.rangeScan(Tombstone(family, from, to), Nil, local.hashOf)

  /** Returns the rows of a family in which this version, above 0, differs from the one before. */
  def changes(family: Int): ChangeIterator = store.changes(local, family)

  def write(): WriteSession =
    new WriteSession(store, local, held, isAlone, byUid, Pin.newUid(), sinceNs)

  /**
   * Begins to fill a version that was loaded empty.
   *
   * @param uid of the version that the commit gives, None for a new one. No other content may ever have it, but several attempts at this one
   *   may. So an abort leaves the blocks, which another attempt may need; they expire by themselves.
   */
  def fill(uid: Option[String]): FillSession = fill(uid, FillSession.StageBytes)

  private[store] def fill(uid: Option[String], stageBytes: Int): FillSession =
    new FillSession(
      store,
      local,
      held,
      uid.getOrElse(Pin.newUid()),
      ownsUid = uid.isEmpty,
      stageBytes)
}
