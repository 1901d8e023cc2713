package org.redisstate.core.store

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{
  InternalException,
  NotDurableException,
  OutcomeUnknownException,
  UnavailableException
}
import org.redisstate.core.format._
import org.redisstate.core.ids.Pin
import org.redisstate.core.local._
import org.redisstate.core.store.previews.{AttemptView, PreviewTimer, PreviewWriter}
import org.redisstate.core.store.resources.{Staging, StoreCounters}

/**
 * One attempt at the version after an open one: a write set, its staging, and its commit or abort.
 * For one task thread, except `abort`, which any thread may call.
 *
 * @param initiallyHeld whether the run holds the partition already
 * @param isAlone whether it begins with nothing, whatever its version holds
 * @param byUid whether the version was asked for by its uid
 * @param uid of this attempt
 * @param sinceNs when the task opened the version
 * @param times of the new version
 * @param isComplete whether the new version has all of its rows in one delta
 */
final class WriteSession private[store] (
    store: VersionKeeper,
    local: LocalVersion,
    initiallyHeld: Boolean,
    val isAlone: Boolean,
    byUid: Boolean,
    uid: String,
    sinceNs: Long,
    times: WriteTimes,
    isComplete: Boolean)
    extends HeldRows {
  import WriteSession._

  private val client = store.client
  private val version = local.pin.version
  private val ident = Segment.deltaIdent(version + 1, uid)
  private val cycle = new LifeCycle
  private val initial = store.families(local).map(times.described)
  private val changes = new WriteSet(client.id, local, initial, store.newLayer(), times)
  private val delta = new DeltaStaging(
    client,
    ident,
    () => cycle.is(LifeCycle.Updating) || cycle.is(LifeCycle.Committing))
  private var familiesChanged = local.families.isEmpty || (isComplete && !isAlone)
  private var held = initiallyHeld

  /** Previews of this attempt; None for a version that is written as a whole. */
  private[store] val preview: Option[PreviewWriter] =
    store.previewEveryMs.filterNot(_ => isComplete).map { everyMs =>
      val trace = changes.traced(isTableNew = familiesChanged)
      new PreviewWriter(client, () => store.holder().id, local.pin, uid, trace, Progress, everyMs)
    }
  preview.foreach(PreviewTimer.start)

  private object Progress extends AttemptView {
    override def isOpen: Boolean = cycle.is(LifeCycle.Updating)
    override def live: Long = changes.numRows.all
    override def internal: Long = changes.numRows.internal
    override def highestFamilyId: Int = changes.families.highestId
    override def timeS: Long = times.timeS
  }

  /** Bytes of this write set, as the memory budget knows them. */
  @volatile private var counted = 0L

  /** Bytes of the layer from which on the budget is told again. */
  private var countAt = CountedBytes

  def pin: Pin = local.pin

  /** Rows of the families that are not internal. */
  def numKeys: Long = changes.numRows.all - changes.numRows.internal
  def numInternalKeys: Long = changes.numRows.internal
  def allFamilies: Seq[Family] = changes.families.all

  /** Bytes of the store, with those of this session until it is committed. */
  def localBytes: Long = store.localBytes + (if (hasCommitted) 0L else changes.memoryBytes)

  /** Bytes until the commit, blocks on their way to Redis included. */
  private[store] override def heldBytes: Long = counted + preview.fold(0L)(_.heldBytes)

  private def countHeld(): Unit = {
    counted = changes.memoryBytes + delta.bytes
    countAt = changes.layerBytes + CountedBytes
    store.grown(this)
  }

  /** Highest id of all families that this lineage ever had. */
  def highestFamilyId: Int = changes.families.highestId
  def hasCommitted: Boolean = cycle.is(LifeCycle.Committed)
  def isUpdating: Boolean = cycle.is(LifeCycle.Updating)

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = changes.get(key, length, out)

  /** A prefetch of rows of the version below; None where none of them is in a file. */
  def prefetch(): Option[Prefetch] = store.prefetch(local)

  /** Returns whether a key exists; reads no list of values. */
  def contains(key: Array[Byte], length: Int): Boolean = changes.contains(key, length)

  def put(key: Array[Byte], keyLength: Int, value: Array[Byte], valueLength: Int): Unit =
    put(key, keyLength, value, valueLength, expiryS)

  /** @param expiryS of the row, in a family with a time to live: seconds since 1970 */
  def put(
      key: Array[Byte],
      keyLength: Int,
      value: Array[Byte],
      valueLength: Int,
      expiryS: Long): Unit = {
    startWrite("put")
    changes.put(key, keyLength, value, valueLength, expiryS)
    stageIfLarge()
  }

  /** Expiry of a row that is written, unless its writer gives it another one: seconds since 1970. */
  def expiryS: Long = times.expiryS

  /** Returns the expiry of a row of a family with a time to live; None if there is no such row. */
  def expiryOf(key: Array[Byte], length: Int): Option[Long] = changes.expiryOf(key, length)

  /** Replaces the expiry of a row; does nothing for an absent row. */
  def renew(key: Array[Byte], length: Int, expiryS: Long): Unit = {
    startWrite("renew")
    changes.renew(key, length, expiryS)
    stageIfLarge()
  }

  def remove(key: Array[Byte], keyLength: Int): Unit = {
    startWrite("remove")
    if (changes.remove(key, keyLength)) stageIfLarge()
  }

  /**
   * Appends to the list of a multi-value family without reading it: only how long it is.
   *
   * @param elements as [[MultiValue.encode]] gives them
   */
  def append(key: Array[Byte], keyLength: Int, elements: Array[Byte], length: Int): Unit = {
    startWrite("append")
    changes.append(key, keyLength, elements, length)
    stageIfLarge()
  }

  /**
   * Rows as they are now, in key order where the family is an ordered one; later changes do not
   * show.
   */
  def iterator(family: Int): RowIterator = changes.iterator(family)

  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = changes.prefixScan(prefix, length)

  /**
   * Rows with `from` ≤ encoded key < `to` in key order; None leaves that side open. Later changes
   * do not show.
   */
  def rangeScan(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): RowIterator =
    changes.rangeScan(family, from, to)

  /** Adds or replaces the description of a family; changes nothing for one that is known so. */
  def defineFamily(family: Family): Unit =
    if (changes.define(times.described(family))) familiesChanged = true

  /** Removes a family and its rows; its id is never used again. */
  def removeFamily(id: Int): Unit = {
    deleteRange(id, None, None)
    changes.forget(id)
    familiesChanged = true
  }

  /** Copies all rows of another version that have not expired, by family. */
  private[store] def refill(families: Seq[Family], rowsOf: Int => RowIterator): Unit = {
    val key, value = new Slice
    families.foreach { family =>
      val rows = rowsOf(family.id)
      while (rows.next(key, value)) {
        startWrite("put")
        changes.put(bytes(key), key.length, bytes(value), value.length)
        stageIfLarge()
      }
    }
  }

  private def bytes(of: Slice): Array[Byte] =
    java.util.Arrays.copyOfRange(of.array, of.offset, of.offset + of.length)

  /** Removes the rows with `from` ≤ encoded key < `to`; None leaves that side open. */
  def deleteRange(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): Unit = {
    startWrite("remove a range")
    changes.removeRange(Tombstone(family, from, to))
  }

  /** @return the new version */
  def commit(): Pin = StoreCounters.timed(store.counters.commitNs) {
    if (!cycle.follow(LifeCycle.BeginCommit)) refuse("commit")
    preview.foreach(_.end())
    store.counters.workNs.addAndGet(System.nanoTime() - sinceNs)
    takeOver()
    val pin = Pin(version + 1, uid)
    val (entry, rest) = encode()
    publish(entry, rest)
    if (!cycle.follow(LifeCycle.EndCommit)) refuse("commit")
    store.install(local, pin, entry, changes.families.table, changes.trimmed())
    store.ended(this)
    store.counters.commits.incrementAndGet()
    store.counters.version.set(pin.version)
    store.counters.rowsWritten.addAndGet(changes.numWritten)
    store.counters.rowsRemoved.addAndGet(changes.numRemoved)
    log.info(
      s"committed ${client.id} version ${pin.version}: ${entry.rows} rows, " +
        s"${entry.bytes} bytes, ${entry.live} keys")
    pin
  }

  private def publish(entry: Entry, rest: Seq[EncodedField]): Unit =
    try {
      val segment = Segment(isSnapshot = false, version + 1, uid, entry)
      client.commit(store.holder(), local.pin, segment, rest, delta.allFields)
    } catch {
      case e @ (_: UnavailableException | _: OutcomeUnknownException | _: NotDurableException) =>
        throw e
      case e: Throwable =>
        delta.leaveBlocks()
        throw e
    }

  /**
   * Aborts the attempt. May be called twice, from any thread, also an interrupted one, with Redis
   * down; never throws, and takes a few seconds at most.
   */
  def abort(): Unit = {
    store.ended(this)
    preview.foreach(_.end())
    val hasPreviews = preview.exists(_.wasSent)
    if (cycle.follow(LifeCycle.Abort) && (delta.hasLeftBlocks || hasPreviews)) {
      // Behind the chunks that are under way: they would come after their own removal.
      val removal = client.later(client.abort(ident, hasPreviews))
      Staging.awaitRemoval(removal, ident, client.id)
    }
  }

  private def startWrite(what: String): Unit = {
    if (!cycle.is(LifeCycle.Updating)) refuse(what)
    takeOver()
  }

  private def refuse(what: String): Nothing =
    throw new InternalException(
      s"$what in ${client.id} version ${version + 1} after its commit or abort.")

  private def takeOver(): Unit =
    if (!held) {
      store.takeOver(local.pin, byUid)
      held = true
    }

  /**
   * Large write sets leave for Redis while the task goes on; ordered families wait for the commit,
   * their blocks being ranges.
   */
  private def stageIfLarge(): Unit = {
    if (changes.layerBytes > countAt) countHeld()
    if (changes.isLarge) stage()
  }

  private def stage(): Unit = {
    countAt = CountedBytes
    delta.begin(changes.layerRows * 4L, changes.layerBytes * 4L)
    delta.stage(changes.stage(store.sizes.writeSetMax), changes.families.hashOf.ordered)
  }

  private def encode(): (Entry, Seq[EncodedField]) = {
    StoreCounters.timed(store.counters.stageNs)(delta.await())
    StoreCounters.timed(store.counters.encodeNs) {
      StoreCounters.onProcessor(store.counters.encodeCpuNs)(encodeRest())
    }
  }

  private def encodeRest(): (Entry, Seq[EncodedField]) = {
    val rest = changes.rest()
    val families = changes.families
    delta.begin(rest.rows.toLong, rest.usedBytes.toLong)
    delta.add(rest, families.hashOf.ordered)(changes.all)
    val table = if (familiesChanged) Some(families.all.sortBy(_.id)) else None
    delta.finish { writer =>
      writer.finish(
        local.pin.uid,
        changes.numRows.all,
        table,
        changes.tombstones,
        isComplete,
        changes.numRows.internal,
        families.highestId,
        if (families.all.exists(_.ttl)) times.timeS else 0
      )
    }
  }
}

object WriteSession {
  private val log = LoggerFactory.getLogger(classOf[WriteSession])

  /** The memory budget is told of every so many bytes. */
  private val CountedBytes = 256 << 10
}
