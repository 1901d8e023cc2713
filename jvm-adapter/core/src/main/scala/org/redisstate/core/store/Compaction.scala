package org.redisstate.core.store

import java.util.concurrent.atomic.AtomicBoolean

import org.redisstate.core.local.{Content, LayerSizes}
import org.redisstate.core.local.blocks.Room
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.store.loading.ContentLoader
import org.redisstate.core.store.resources.{Background, StoreCounters}

/**
 * Compacts cached versions: folds their layers into their base, or merges them into one layer.
 * Newer versions share the result. Thread-safe.
 */
private[store] final class Compaction(
    client: PartitionClient,
    cache: VersionCache,
    room: Room,
    sizes: LayerSizes,
    counters: StoreCounters) {
  import Compaction._

  private val isRunning = new AtomicBoolean

  /**
   * Compacts the previous version in the background. At most one compaction waits or runs; it takes
   * the version that is the previous one by then.
   */
  def soon(): Unit = {
    val heavy = cache.versions.lastOption.flatMap(_.here).filter(isHeavy)
    if (heavy.nonEmpty && isRunning.compareAndSet(false, true)) {
      val isBegun =
        Background.helping(s"compaction of ${client.id}", heavy.exists(_.base.isInFiles)) {
          try
            client.whileAnswering {
              StoreCounters.timed(counters.foldNs)(cache.versions.lastOption.foreach(compact))
            }: Unit
          finally isRunning.set(false)
        }
      if (!isBegun) isRunning.set(false)
    }
  }

  private def compact(version: LocalVersion): Unit =
    if (!version.read(old => cache.isClosed || !isHeavy(old) || fold(version, old))) {
      version.read { old =>
        if (old.layers.length > ContentLoader.LayersMax)
          Room.taking(room, old.layerBytes)(cache.share(version, old, old.merged(sizes.mergedMax)))
      }
    }

  /** Folds the layers if they are heavy and memory has room for both; @return whether none is left. */
  private def fold(version: LocalVersion, old: Content): Boolean =
    old.layers.isEmpty ||
      (old.layerBytes * FoldShare > old.base.decodedBytes && foldWithin(version, old))

  /** Folds the layers, however small, where memory has room for both. */
  def foldAll(version: LocalVersion, old: Content): Unit =
    if (old.layers.nonEmpty) {
      foldWithin(version, old)
      ()
    }

  private def foldWithin(version: LocalVersion, old: Content): Boolean =
    canMerge(old) && old.base.loadAll(() => cache.isClosed) &&
      Room.offered(room, old.base.decodedBytes + 2 * old.layerBytes) {
        val expiry = version.expiry
        val folded = Content.fold(old, version.hashOf, room, version.live.all, expiry)
        cache.share(version, old, folded)
        if (expiry.isOn) folded.rowsHere.foreach(cache.recountRows(version, _))
      }.nonEmpty

  /** Returns whether the layers of a content fit into one. */
  def canMerge(content: Content): Boolean = content.liveBytes <= sizes.mergedMax

  private def isHeavy(content: Content): Boolean =
    content.layers.length > ContentLoader.LayersMax ||
      (content.layers.length > 1 && content.layerBytes * FoldShare > content.base.decodedBytes)
}

private object Compaction {

  /** Layers that hold more than this part of the base's bytes are folded into it. */
  private val FoldShare = 8
}
