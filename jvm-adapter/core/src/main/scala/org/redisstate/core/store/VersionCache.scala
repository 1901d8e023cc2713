package org.redisstate.core.store

import java.util.{Collections, WeakHashMap}

import scala.jdk.CollectionConverters._

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Base, Content}
import org.redisstate.core.protocol.SegmentIo
import org.redisstate.core.store.resources.{Evictable, MemoryBudget}

/**
 * The newest versions of one partition in executor memory, and the bytes that the memory budget
 * counts for them and for write sets in progress. Thread-safe.
 *
 * @param files segments of the partition, whose filters that nobody asked for count too
 */
private[store] final class VersionCache(budget: MemoryBudget, files: Option[SegmentIo] = None)
    extends Evictable
    with AutoCloseable {
  import VersionCache._

  @GuardedBy("this") @volatile private var closed = false

  /** Newest first: the version committed or opened last, and the one before it. */
  @GuardedBy("this") @volatile private var cached: List[LocalVersion] = Nil

  /** Bytes that were reported to the budget. */
  @GuardedBy("countLock") private var counted, countedSessions, countedFilters = 0L
  private val countLock = new Object

  /**
   * Write sets in progress; one that is neither committed nor aborted counts until it is garbage.
   */
  private val sessions =
    Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap[
      HeldRows,
      java.lang.Boolean]))
  budget.register(this)

  def isClosed: Boolean = closed

  /** Returns the cached versions, newest first. */
  def versions: List[LocalVersion] = cached

  /** Returns the cached version at a pin. */
  def find(pin: Pin): Option[LocalVersion] = cached.find(_.pin == pin)

  /** Bytes of the cached versions. */
  def localBytes: Long = {
    val versions = cached.flatMap(_.here)
    val filters = versions.map(_.base).distinct.map(_.filterBytes).sum +
      files.fold(0L)(_.freshFilterBytes)
    filters + versions.map(_.base).distinct.map(_.memoryBytes).sum + versions.flatMap(
      _.layers).distinct.map(
      _.memoryBytes).sum
  }

  /** Makes a version the newest one; drops the oldest. */
  def remember(version: LocalVersion): Unit = synchronized {
    if (!closed) {
      val before = bases(cached)
      cached = (version :: cached.filter(_.pin != version.pin)).take(VersionsCached)
      countOnly(before)
    }
  }

  /** Makes the version after `base` the newest one, with the present history of `base`. */
  def rememberAfter(base: LocalVersion)(next: History => LocalVersion): Unit =
    synchronized(remember(next(base.history)))

  /** Replaces a content by an equal one, also in newer versions that are built on it. */
  def share(version: LocalVersion, old: Content, now: Content): Unit = synchronized {
    val before = bases(cached)
    version.replace(old, now)
    for (newer <- cached; content <- newer.here) {
      val above = content.layers.length - old.layers.length
      if (newer.pin.version > version.pin.version && (content.base eq old.base) && above >= 0 && (content.layers.drop(
          above) eq old.layers)) {
        newer.replace(content, now.over(content.layers.take(above)))
      }
    }
    countOnly(before)
  }

  /** Drops the deltas up to a new snapshot from the histories of its version and of newer ones. */
  def forgetDeltas(snapshot: LocalVersion, bytes: Long): Unit = synchronized {
    from(snapshot).foreach(v => v.history = v.history.since(snapshot.pin.version, bytes))
  }

  /** Notes a hot run in the histories of its version and of newer ones. */
  def merged(version: LocalVersion, run: HotRunSize): Unit = synchronized {
    from(version).foreach(v => v.history = v.history.copy(hotRun = Some(run)))
  }

  /**
   * Stops counting expired rows, also in a version that was written on top of this one.
   *
   * @param rows of the version that are not expired
   */
  def recountRows(version: LocalVersion, rows: Long): Unit = synchronized {
    val expired = version.live.all - rows
    val above = cached.filter(_.countedFrom.contains(version.pin))
    (version :: above).distinct.foreach(_.uncount(expired))
  }

  /** A version and the cached ones above it. */
  private def from(version: LocalVersion): List[LocalVersion] =
    (version :: cached).distinct.filter(_.pin.version >= version.pin.version)

  /** Counts a write set in progress, which cannot be dropped, so that other rows are. */
  def grown(session: HeldRows): Unit = {
    sessions.add(session)
    recount()
    budget.check()
  }

  /** Stops counting a write set. */
  def ended(session: HeldRows): Unit = if (sessions.remove(session)) recount()

  /** Reports to the budget what this partition holds now. */
  def recount(): Unit = countLock.synchronized {
    val inSessions = sessionBytes
    val now = (if (closed) 0L else localBytes) + inSessions
    val inFilters = if (closed) 0L else bases(cached).iterator.map(_.filterBytes).sum
    budget.adjust(now - counted, inSessions - countedSessions, inFilters - countedFilters)
    counted = now
    countedFilters = inFilters
    countedSessions = inSessions
  }

  private def sessionBytes: Long =
    if (sessions.isEmpty) 0L
    else sessions.synchronized(sessions.asScala.iterator.map(_.heldBytes).sum)

  private[store] override def shrink(bytes: Long, everything: Boolean): Long = {
    val filters = files.fold(0L)(_.forgetFreshFilters())
    filters + free(bytes - filters)((base, wanted) => base.compress(wanted, everything))
  }

  private[store] override def drop(bytes: Long): Long = free(bytes)(_.drop(_))

  private[store] override def forget(): Long = {
    val before = localBytes
    cached.reverse.foreach(_.forget())
    recount()
    before - localBytes
  }

  private def free(bytes: Long)(how: (Base, Long) => Long): Long = {
    val freed = bases(cached).foldLeft(0L)((sum, base) => sum + how(base, bytes - sum))
    recount()
    freed
  }

  /** Drops all versions; `remember` does nothing from now on. */
  override def close(): Unit = {
    // A thread that caches a version has done so, or finds the cache closed.
    synchronized {
      closed = true
      // A task may still read them, and nobody counts what it reads.
      bases(cached).foreach(_.counted(false))
      cached = Nil
    }
    budget.unregister(this)
    files.foreach { one => one.forgetFreshFilters(): Unit }
    recount()
  }

  private def bases(versions: List[LocalVersion]): List[Base] =
    versions.flatMap(_.here).map(_.base).distinct

  /** Stops counting bases that are not cached any more, even if a task still reads them. */
  private def countOnly(before: List[Base]): Unit = {
    val now = bases(cached)
    now.foreach(_.counted(true))
    before.filterNot(now.contains).foreach(_.counted(false))
    recount()
  }
}

private object VersionCache {
  private val VersionsCached = 2
}
