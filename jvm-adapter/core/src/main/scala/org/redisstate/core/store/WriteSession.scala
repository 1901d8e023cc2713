package org.redisstate.core.store

import java.util.concurrent.Future

import scala.collection.mutable

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

/**
 * The uncommitted changes of one attempt, over an open version. For one task thread, except
 * `abort`, which any thread may call.
 *
 * @param initiallyHeld whether the run holds the partition already
 * @param isAlone whether it begins with nothing, whatever its version holds
 * @param byUid whether the version was asked for by its uid
 * @param uid of this attempt
 */
final class WriteSession private[store] (
    store: VersionKeeper,
    local: LocalVersion,
    initiallyHeld: Boolean,
    val isAlone: Boolean,
    byUid: Boolean,
    uid: String)
    extends HeldRows {
  import WriteSession._

  private val client = store.client
  private val version = local.pin.version
  private val ident = Segment.deltaIdent(version + 1, uid)
  private val cycle = new LifeCycle

  /** Layers that iterators may hold: they do not change any more. Newest first. */
  private var frozen: List[Layer] = Nil

  /** Layers whose rows are on their way to Redis, newest first; older than `frozen`. */
  private var staged: List[Layer] = Nil
  private var stagedBytes = 0L
  private var layer = store.newLayer()

  /** All of them, newest first. */
  private var own: List[Layer] = layer :: Nil
  private var shared = false
  private var families = store.families(local)
  private var highestId = math.max(local.table.highestId, families.map(_.id).max)
  private var familiesChanged = local.families.isEmpty
  private val tombstones = mutable.ArrayBuffer.empty[Tombstone]
  private var live = local.live.all
  private var liveInternal = local.live.internal
  private var written, removed = 0L
  private var held = initiallyHeld

  /** Bytes of the layer that lists take which were staged before: they do not bring the next stage nearer. */
  private var rejoined = 0L
  private val lastKey = new LastKey
  private val probe = new Slice

  /** What this write set holds, as the memory budget knows it. */
  @volatile private var counted = 0L

  /** Bytes of the layer from which on the budget is told again. */
  private var countAt = CountedBytes
  private var writer: SegmentWriter = _
  @volatile private var staging: List[Future[_]] = Nil

  /**
   * Whether a commit that failed may have left blocks; on a server that is down they expire by
   * themselves.
   */
  @volatile private var leftBlocks = false
  private var hashOf: KeyHash = KeyHash.of(families)
  private var internalIds = idsOfInternal

  def pin: Pin = local.pin

  /** Rows of the families that are not internal. */
  def numKeys: Long = live - liveInternal
  def numInternalKeys: Long = liveInternal
  def allFamilies: Seq[Family] = families

  /** Of the store, with what this session adds to it until it is committed. */
  def localBytes: Long =
    store.localBytes + (if (hasCommitted) 0L else own.iterator.map(_.memoryBytes).sum)

  /** What it holds until it is committed, blocks on their way to Redis included. */
  private[store] override def heldBytes: Long = counted

  private def countHeld(): Unit = {
    counted = own.iterator.map(_.memoryBytes).sum + (if (writer == null) 0L else writer.bytes)
    countAt = layer.usedBytes + CountedBytes
    store.grown(this)
  }

  /** Of all families that this lineage ever had. */
  def highestFamilyId: Int = highestId
  def hasCommitted: Boolean = cycle.is(LifeCycle.Committed)
  def isUpdating: Boolean = cycle.is(LifeCycle.Updating)

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = {
    val hash = hashOf(key, 0, length)
    val found = lookup(hash, key, length, out)
    lastKey.set(key, length, found)
    found
  }

  /** Whether a key is there; reads no list of values. */
  def contains(key: Array[Byte], length: Int): Boolean = {
    val found = exists(hashOf(key, 0, length), key, length)
    lastKey.set(key, length, found)
    found
  }

  def put(key: Array[Byte], keyLength: Int, value: Array[Byte], valueLength: Int): Unit = {
    startWrite("put")
    SegmentWriter.checkLimits(keyLength, valueLength, s"put in ${client.id}")
    val hash = hashOf(key, 0, keyLength)
    if (!exists(hash, key, keyLength)) count(key, 1)
    layer.put(hash, key, 0, keyLength, value, 0, valueLength)
    written += 1
    lastKey.set(key, keyLength, found = true)
    stageIfLarge()
  }

  def remove(key: Array[Byte], keyLength: Int): Unit = {
    startWrite("remove")
    val hash = hashOf(key, 0, keyLength)
    if (exists(hash, key, keyLength)) {
      count(key, -1)
      layer.remove(hash, key, 0, keyLength)
      removed += 1
      lastKey.set(key, keyLength, found = false)
      stageIfLarge()
    }
  }

  /**
   * Appends to the list of a multi-value family without reading it: only how long it is.
   *
   * @param elements as [[MultiValue.encode]] gives them
   */
  def append(key: Array[Byte], keyLength: Int, elements: Array[Byte], length: Int): Unit = {
    startWrite("append")
    val hash = hashOf(key, 0, keyLength)
    val before = Layers.valueBytes(own, hash, key, 0, keyLength) {
      local.read(_.valueBytes(hash, key, 0, keyLength))
    }
    // As a whole: it is one value when it is read, and in the next snapshot.
    SegmentWriter.checkLimits(keyLength, math.max(0, before) + length, s"append in ${client.id}")
    if (before < 0) count(key, 1)
    // A part replaces the row of an earlier part: what is staged already has to be written as a
    // whole, once for all that is appended until the next stage.
    if (holdsRow(staged, hash, key, keyLength) && !holdsRow(
        layer :: frozen,
        hash,
        key,
        keyLength)) {
      val known = lookup(hash, key, keyLength, probe)
      val joined =
        if (known) MultiValue.join(probe.array, probe.offset, probe.length, elements, 0, length)
        else java.util.Arrays.copyOf(elements, length)
      layer.put(hash, key, 0, keyLength, joined, 0, joined.length)
      rejoined += RejoinedShare * joined.length
    } else layer.append(hash, key, 0, keyLength, elements, 0, length)
    written += 1
    lastKey.set(key, keyLength, found = true)
    stageIfLarge()
  }

  private def holdsRow(
      layers: List[Layer],
      hash: Int,
      key: Array[Byte],
      length: Int): Boolean = layers.exists(_.find(hash, key, 0, length) >= 0)

  /**
   * Rows as they are now, in key order where the family is an ordered one; later changes do not
   * show.
   */
  def iterator(family: Int): RowIterator = {
    if (hashOf.ordered(family)) rangeScan(family, None, None)
    else {
      val layers = snapshot()
      local.scan(_.over(layers).iterator(family, ordered = false, hashOf))
    }
  }

  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = KeyHash.ofPrefix(prefix, length)
    local.read(_.over(own).prefixScan(hash, prefix, length))
  }

  /**
   * Rows with `from` ≤ encoded key < `to` in key order; None leaves that side open. Later changes
   * do not show.
   */
  def rangeScan(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): RowIterator =
    local.rangeScan(Tombstone(family, from, to), snapshot(), hashOf)

  /** Adds or replaces the description of a family; changes nothing for one that is known so. */
  def defineFamily(family: Family): Unit =
    if (!families.contains(family)) {
      families = families.filter(_.id != family.id) :+ family
      highestId = math.max(highestId, family.id)
      changedFamilies()
    }

  /** Removes a family and its rows; its id is never used again. */
  def removeFamily(id: Int): Unit = {
    deleteRange(id, None, None)
    families = families.filter(_.id != id)
    changedFamilies()
  }

  private def changedFamilies(): Unit = {
    familiesChanged = true
    hashOf = KeyHash.of(families)
    internalIds = idsOfInternal
  }

  private def idsOfInternal: Set[Int] = families.filter(_.internal).map(_.id).toSet

  private def count(key: Array[Byte], change: Int): Unit =
    count(change, internalIds.nonEmpty && internalIds(StoredKey.familyOf(key, 0)))

  private def count(change: Int, internal: Boolean): Unit = {
    live += change
    if (internal) liveInternal += change
  }

  /** Removes the rows with `from` ≤ encoded key < `to`; None leaves that side open. */
  def deleteRange(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]): Unit = {
    startWrite("remove a range")
    val range = Tombstone(family, from, to)
    val key, value = new Slice
    val rows = local.rangeScan(range, own, hashOf)
    while (rows.next(key, value)) {
      count(-1, internalIds(family))
      removed += 1
    }
    layer = Layer.merge(layer :: frozen)
    frozen = Nil
    layer.clear(range)
    // The tombstone applies before all rows of the delta: those that are staged are removed one by
    // one.
    staged.foreach { earlier =>
      earlier.entries().foreach { e =>
        val at = earlier.keyOffset(e)
        val length = earlier.keyLength(e)
        if (range.covers(earlier.bytes, at, length))
          layer.remove(earlier.hashOf(e), earlier.bytes, at, length)
      }
    }
    tombstones += range
    relink()
    lastKey.forget()
  }

  /** @return the new version */
  def commit(): Pin = StoreCounters.timed(store.counters.commitNs) {
    if (!cycle.follow(LifeCycle.BeginCommit)) refuse("commit")
    takeOver()
    val pin = Pin(version + 1, uid)
    val (entry, rest) = encode()
    publish(entry, rest)
    if (!cycle.follow(LifeCycle.EndCommit)) refuse("commit")
    own = own.filterNot(_.isEmpty).map(_.trimmed)
    store.install(local, pin, entry, FamilyTable(families, highestId), own)
    store.ended(this)
    store.counters.commits.incrementAndGet()
    store.counters.rowsWritten.addAndGet(written)
    store.counters.rowsRemoved.addAndGet(removed)
    log.info(
      s"committed ${client.id} version ${pin.version}: ${entry.rows} rows, " +
        s"${entry.bytes} bytes, ${entry.live} keys")
    pin
  }

  private def publish(entry: Entry, rest: Seq[EncodedField]): Unit =
    try client.commit(store.holder(), local.pin, uid, entry, rest, writer.allFields)
    catch {
      case e @ (_: UnavailableException | _: OutcomeUnknownException | _: NotDurableException) =>
        throw e
      case e: Throwable =>
        leftBlocks = true
        throw e
    }

  /**
   * Gives the attempt up. May come twice, from any thread, also from one that is interrupted, with Redis down; never throws, and takes
   * a few seconds at most.
   */
  def abort(): Unit = {
    store.ended(this)
    if (cycle.follow(LifeCycle.Abort) && (leftBlocks || staging.nonEmpty)) {
      // Behind the chunks that are under way: they would come after their own removal.
      Staging.awaitRemoval(client.later(client.abort(ident)), ident, client.id)
    }
  }

  private def lookup(hash: Int, key: Array[Byte], length: Int, out: Slice): Boolean = {
    var rest = own
    while (rest ne Nil) {
      val newest = rest.head
      val entry = newest.find(hash, key, 0, length)
      if (entry >= 0) {
        if (newest.isRemoved(entry)) return false
        if (newest.isAppended(entry)) {
          val from = rest
          return local.read(_.over(from).get(hash, key, 0, length, out))
        }
        newest.value(entry, out)
        return true
      }
      if (!newest.clearsNothing && newest.isCleared(key, 0, length)) return false
      rest = rest.tail
    }
    local.get(hash, key, length, out)
  }

  private def relink(): Unit = own = layer :: frozen ::: staged

  private def exists(hash: Int, key: Array[Byte], length: Int): Boolean =
    if (lastKey.is(key, length)) lastKey.found else holds(hash, key, length)

  private def holds(hash: Int, key: Array[Byte], length: Int): Boolean = {
    var rest = own
    while (rest ne Nil) {
      val entry = rest.head.find(hash, key, 0, length)
      if (entry >= 0) return !rest.head.isRemoved(entry)
      if (!rest.head.clearsNothing && rest.head.isCleared(key, 0, length)) return false
      rest = rest.tail
    }
    local.contains(hash, key, length)
  }

  /** The layers for an iterator: the next change goes into another one. */
  private def snapshot(): List[Layer] = {
    shared = layer.rows > 0 || !layer.clearsNothing
    own.filterNot(_.isEmpty)
  }

  private def startWrite(what: String): Unit = {
    if (!cycle.is(LifeCycle.Updating)) refuse(what)
    takeOver()
    if (shared) {
      frozen = layer :: frozen
      if (frozen.length > FrozenMax) frozen = List(Layer.merge(frozen))
      layer = new Layer(InitialRows)
      shared = false
      relink()
    }
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
    if (layer.usedBytes > countAt) countHeld()
    if (layer.usedBytes > StageBytes + rejoined) stage()
  }

  private def stage(): Unit = {
    countAt = CountedBytes
    rejoined = 0
    if (writer == null) writer =
      new SegmentWriter(ident, Bucketing.bucketsFor(layer.rows * 4L, layer.usedBytes * 4L))
    val full = if (frozen.isEmpty) layer else Layer.merge(layer :: frozen)
    // Who reads the delta brings all of its parts into one layer.
    stagedBytes += full.liveBytes
    if (stagedBytes > store.sizes.writeSetMax) throw Layer.tooLarge(store.sizes.writeSetMax)
    staged = full :: staged
    frozen = Nil
    layer = new Layer(full.rows)
    shared = false
    relink()
    val segment = writer
    val ordered = hashOf.ordered
    staging ::= client.later {
      if (cycle.is(LifeCycle.Updating) || cycle.is(LifeCycle.Committing)) {
        full.foreachBucket(segment.buckets, ordered)(segment.add)
        client.stage(ident, ident, segment.takeFresh())
      }
    }
  }

  private def encode(): (Entry, Seq[EncodedField]) = {
    staging.reverse.foreach(Staging.await(_, ident, client.id))
    if (frozen.nonEmpty) layer = Layer.merge(layer :: frozen)
    frozen = Nil
    relink()
    val rest = layer
    if (writer == null) writer =
      new SegmentWriter(ident, Bucketing.bucketsFor(rest.rows.toLong, rest.usedBytes.toLong))
    val ordered = hashOf.ordered
    rest.foreachBucket(writer.buckets, ordered)(writer.add)
    if (ordered.nonEmpty) {
      val all = if (staged.isEmpty) rest else Layer.merge(rest :: staged)
      ordered.toSeq.sorted.foreach(family => writer.addOrdered(family, all.rowsOf(family)))
    }
    val table = if (familiesChanged) Some(families.sortBy(_.id)) else None
    val entry = writer.finish(
      local.pin.uid,
      live,
      table,
      tombstones.toSeq,
      isAlone,
      liveInternal,
      highestId)
    (entry, writer.takeFresh())
  }
}

object WriteSession {
  private val log = LoggerFactory.getLogger(classOf[WriteSession])
  private val InitialRows = 256
  private val StageBytes = 4 << 20

  /** The memory budget is told of every so many bytes. */
  private val CountedBytes = 256 << 10

  /** A list may take so many times its bytes in a layer in which it grows to twice its length. */
  private val RejoinedShare = 3L
  private val FrozenMax = 8

  /** The key that was asked for last: an operator's put mostly follows its get. */
  private final class LastKey {
    private var bytes = new Array[Byte](64)
    private var length = -1
    var found: Boolean = false

    def is(key: Array[Byte], keyLength: Int): Boolean =
      keyLength == length && java.util.Arrays.equals(key, 0, keyLength, bytes, 0, keyLength)

    def set(key: Array[Byte], keyLength: Int, found: Boolean): Unit = {
      if (bytes.length < keyLength) bytes = new Array[Byte](keyLength * 2)
      System.arraycopy(key, 0, bytes, 0, keyLength)
      length = keyLength
      this.found = found
    }

    def forget(): Unit = length = -1
  }
}
