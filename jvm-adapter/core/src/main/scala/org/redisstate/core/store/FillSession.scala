package org.redisstate.core.store

import java.nio.file.Path
import java.util.concurrent.Future

import scala.collection.mutable

import org.redisstate.core.errors.{InternalException, UnavailableException}
import org.redisstate.core.format._
import org.redisstate.core.ids.Pin
import org.redisstate.core.local._
import org.redisstate.core.protocol.manifest.MemoryBound
import org.redisstate.core.store.resources.{Staging, StoreCounters}

/**
 * Writes all rows of a version that has nothing below it, each key once. The rows leave for Redis
 * as they come, and only those of ordered families wait for the commit: so it needs little memory,
 * and cannot be read. In a partition with a bound the rows go over the local disk into a block
 * file, past Redis, unless they are few. For one thread.
 *
 * @param local the empty version below
 * @param initiallyHeld whether the run holds the partition already
 * @param uid of the version that the commit gives
 * @param ownsUid whether no other attempt has the uid
 * @param timeS of the version, if its rows expire
 * @param stageBytes so many bytes of rows leave at once
 * @param disk folder for rows on their way to a file; None for that of the process
 */
final class FillSession private[store] (
    store: VersionKeeper,
    local: LocalVersion,
    initiallyHeld: Boolean,
    uid: String,
    ownsUid: Boolean,
    timeS: Option[Long],
    stageBytes: Int,
    disk: Option[Path])
    extends HeldRows {
  import FillSession._

  private val client = store.client
  private val pin = Pin(local.pin.version + 1, uid)
  private val ident = Segment.deltaIdent(pin.version, uid)
  private val cycle = new LifeCycle
  private val families =
    new WriteFamilies(store.families(local).map(described), highestBefore = 0)
  private var expiry = Expiry(0, families.all)
  private val stamp = new Expiry.Stamp
  private var layer = new Layer(InitialRows)

  /** The rows of ordered families. */
  private val sorted = new Layer(0)

  /** Exists as soon as the server may have blocks. */
  private var writer: SegmentWriter = _

  /** Layers on their way to Redis, with their bytes, the oldest first. */
  private val staging = mutable.Queue.empty[(Future[_], Long)]
  private var held = initiallyHeld

  /** Bound of the partition, once it is held. */
  private lazy val bound: Option[MemoryBound] = client.files.bound()

  /** Rows of a bounded partition that left memory; null before the first ones. */
  private var spilled: SpilledRows = _
  private var countAt = CountedBytes
  private var live, liveInternal = 0L
  @volatile private var counted = 0L

  private[store] override def heldBytes: Long = counted

  def allFamilies: Seq[Family] = families.all

  /** Adds a family. */
  def defineFamily(family: Family): Unit = {
    families.define(described(family))
    expiry = Expiry(0, families.all)
  }

  private def described(family: Family): Family =
    family.copy(ttl = timeS.nonEmpty && family.canExpire)

  /**
   * Adds a row. That its key did not come before is up to the caller: of a key that did, the number
   * of rows is wrong.
   *
   * @param value of a family with lists, all elements as [[MultiValue.encode]] gives them
   * @param expiryS of the row, if it can expire: after the time of the version
   */
  def put(
      key: Array[Byte],
      keyLength: Int,
      value: Array[Byte],
      valueLength: Int,
      expiryS: Long = Expiry.Never): Unit = {
    if (!cycle.is(LifeCycle.Updating)) refuse("put")
    takeOver()
    SegmentWriter.checkLimits(keyLength, valueLength, s"put in ${client.id}")
    val family = StoredKey.familyOf(key, 0)
    val hashOf = families.hashOf
    val rows = if (hashOf.ordered(family)) sorted else layer
    val hash = hashOf(key, 0, keyLength)
    if (expiry.of(family)) {
      val length = stamp(value, 0, valueLength, expiryS)
      rows.put(hash, key, 0, keyLength, stamp.bytes, 0, length)
    } else rows.put(hash, key, 0, keyLength, value, 0, valueLength)
    live += 1
    if (families.isInternal(family)) liveInternal += 1
    if (layer.usedBytes.toLong + sorted.usedBytes > countAt) count()
    if (layer.usedBytes > stageBytes) {
      if (bound.isEmpty) stage() else spill()
    }
  }

  /** @return the new version */
  def commit(): Pin = StoreCounters.timed(store.counters.commitNs) {
    if (!cycle.follow(LifeCycle.BeginCommit)) refuse("commit")
    takeOver()
    if (spilled != null) commitFile()
    else {
      val (entry, rest) = encode()
      // An earlier layer is in Redis only where there is no bound.
      if (bound.exists(!_.takesMoved(entry))) commitFile()
      else client.commit(store.holder(), local.pin, segmentOf(entry), rest, throw lostBlocks)
    }
    closeSpilled()
    if (!cycle.follow(LifeCycle.EndCommit)) refuse("commit")
    store.ended(this)
    store.counters.commits.incrementAndGet()
    store.counters.rowsWritten.addAndGet(live)
    pin
  }

  /**
   * Aborts the attempt; never throws. Blocks that another attempt may need expire by themselves.
   */
  def abort(): Unit = {
    store.ended(this)
    closeSpilled()
    if (cycle.follow(LifeCycle.Abort) && ownsUid && writer != null) {
      // Behind the chunks that are under way: they would come after their own removal.
      Staging.awaitRemoval(client.later(client.abort(ident)), ident, client.id)
    }
  }

  private def takeOver(): Unit =
    if (!held) {
      store.takeOver(local.pin, byUid = false)
      held = true
    }

  private def stage(): Unit = {
    if (writer == null) writer =
      new SegmentWriter(
        ident,
        Bucketing.bucketsFor(FirstPart * layer.rows.toLong, FirstPart * layer.usedBytes.toLong))
    val full = layer
    val segment = writer
    layer = new Layer(0)
    val work = client.later {
      if (cycle.is(LifeCycle.Updating) || cycle.is(LifeCycle.Committing)) {
        full.foreachBucket(segment.buckets)(segment.add)
        client.segments.stage(ident, ident, segment.handOver())
      }
    }
    staging += work -> full.memoryBytes
    while (staging.size > StagingMax) Staging.await(staging.dequeue()._1, ident, client.id)
    // Only now, so that there are two at a time; with room for rows that are a little longer.
    layer = new Layer(full.rows, full.usedBytes + SpareBytes)
    count()
  }

  private def spill(): Unit = {
    if (spilled == null)
      spilled = new SpilledRows(s"write version ${pin.version} of ${client.id}", disk)
    spilled.add(layer)
    layer = new Layer(layer.rows, layer.usedBytes + SpareBytes)
    count()
  }

  private def closeSpilled(): Unit = if (spilled != null) {
    spilled.close()
    spilled = null
  }

  /** Writes the delta into a file of its own, then enters it. */
  private def commitFile(): Unit = {
    if (spilled != null) spill()
    val begun = segmentOf(Entry(uid, 0, 0, 0, 0, 1, 0, complete = true, header = false))
    val (segment, place) = client.files.write(begun, families.all) { give =>
      val buckets =
        if (spilled == null) Bucketing.bucketsFor(layer.rows.toLong, layer.usedBytes.toLong)
        else Bucketing.bucketsFor(spilled.rows, spilled.bytes)
      val out = new SegmentWriter(ident, buckets)
      def send(least: Long): Unit = if (out.freshBytes > least) out.handOver().foreach(give)
      def add(bucket: Int, rows: RowBlock): Unit = {
        out.add(bucket, rows)
        send(FileBytes)
      }
      if (spilled == null) layer.foreachBucket(buckets)(add)
      else spilled.foreachBucket(buckets)(add)
      val entry = finish(out)(send(FileBytes))
      send(0)
      segmentOf(entry)
    }.getOrElse(throw new UnavailableException(
      s"commit version ${pin.version} of ${client.id}: the partition vanished meanwhile. Nothing was committed. Try again."))
    client.commit(store.holder(), local.pin, segment.copy(place = place), Nil, Nil)
  }

  private def segmentOf(entry: Entry): Segment =
    Segment(isSnapshot = false, pin.version, uid, entry)

  private def encode(): (Entry, Seq[EncodedField]) = {
    while (staging.nonEmpty) Staging.await(staging.dequeue()._1, ident, client.id)
    if (writer == null) writer =
      new SegmentWriter(ident, Bucketing.bucketsFor(layer.rows.toLong, layer.usedBytes.toLong))
    layer.foreachBucket(writer.buckets)(writer.add)
    val entry = finish(writer)(())
    (entry, writer.takeFresh())
  }

  /**
   * Adds what comes behind the rows of hashed families.
   *
   * @param added called after each block
   */
  private def finish(writer: SegmentWriter)(added: => Unit): Entry = {
    families.hashOf.ordered.toSeq.sorted.foreach { family =>
      writer.addOrdered(family, Iterator.single(sorted.rowsOf(family)))(_ => added)
    }
    writer.finish(
      local.pin.uid,
      live,
      Some(families.all.sortBy(_.id)),
      Nil,
      complete = true,
      liveInternal,
      families.highestId,
      if (expiry.isOn) timeS.getOrElse(0L) else 0L)
  }

  private def count(): Unit = {
    counted = layer.memoryBytes + sorted.memoryBytes + staging.iterator.map(_._2).sum
    countAt = layer.usedBytes.toLong + sorted.usedBytes + CountedBytes
    store.grown(this)
  }

  private def lostBlocks = new UnavailableException(
    s"commit version ${pin.version} of ${client.id}: the blocks on the server are not those that were sent. It lost some " +
      "in a fail-over, a restart or by eviction, or an earlier attempt had left some. Nothing was committed, and " +
      "all blocks were removed. Try again; if the error persists, set maxmemory-policy to noeviction.")

  private def refuse(what: String): Nothing =
    throw new InternalException(
      s"$what in ${client.id} version ${pin.version} after its commit or abort.")
}

object FillSession {
  private val InitialRows = 256

  /**
   * Rows leave when there are so many bytes of them: the more, the fuller are the blocks that they
   * are cut into. A task has two times 32 MiB, to which the first layer grows in powers of two. It
   * is the same everywhere, since attempts with one uid have to give the same blocks.
   */
  private[store] val StageBytes = 31 << 20
  private val SpareBytes = 1 << 20

  /** Share of all rows that the first stage may hold before buckets become too large. */
  private val FirstPart = 4

  /** Most layers that wait for the server. */
  private val StagingMax = 1

  /** Bytes of blocks that go to a file at once. */
  private val FileBytes = 1L << 20

  /** The memory budget is told of every so many bytes. */
  private val CountedBytes = 1L << 20
}
