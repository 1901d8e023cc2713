package org.redisstate.core.store

import org.redisstate.core.format.{Entry, Family}
import org.redisstate.core.ids.{Pin, RegisteredRun}
import org.redisstate.core.local.{Layer, LayerSizes}
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.store.resources.StoreCounters

/** Services of the store that an open version, and a write set over it, need. */
private[store] trait VersionKeeper {
  def client: PartitionClient
  def counters: StoreCounters
  private[store] def sizes: LayerSizes

  /** Time to live of the rows that are written; None where they do not expire. */
  private[store] def ttlMs: Option[Long]

  /** Time between two previews of a batch that runs; None where there are none. */
  private[store] def previewEveryMs: Option[Long]

  /** Bytes of its versions in memory. */
  def localBytes: Long

  /**
   * Returns the families of a version; for a version that was never written, those of its first
   * commit.
   */
  private[store] def families(local: LocalVersion): Seq[Family]

  /** A prefetch of rows of a version; None where none of them is in a file. */
  private[store] def prefetch(version: LocalVersion): Option[Prefetch]

  /** Changed rows of a family of a version above 0. */
  private[store] def changes(version: LocalVersion, family: Int): ChangeIterator

  /** A layer with room for as much as the last commit changed. */
  private[store] def newLayer(): Layer

  /** Counts a write set that grew: it cannot make way, so others do. */
  private[store] def grown(session: HeldRows): Unit

  /** Stops counting a write set. */
  private[store] def ended(session: HeldRows): Unit

  /** Returns the registered run that this store serves. */
  private[store] def holder(): RegisteredRun

  /** @param byUid whether Spark named the version by its uid */
  private[store] def takeOver(pin: Pin, byUid: Boolean): Unit

  /** Makes a committed version the current one. */
  private[store] def install(
      base: LocalVersion,
      pin: Pin,
      entry: Entry,
      table: FamilyTable,
      layers: List[Layer]): Unit
}

/** Rows in memory that cannot make way. */
private[store] trait HeldRows {
  private[store] def heldBytes: Long
}
