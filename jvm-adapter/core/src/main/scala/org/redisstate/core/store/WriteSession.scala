package org.redisstate.core.store

import java.util.concurrent.{ExecutionException, Future}

import scala.collection.mutable

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{FormatException, InternalException, RedisStateException}
import org.redisstate.core.format._
import org.redisstate.core.ids.Pin
import org.redisstate.core.local._

/**
 * The uncommitted changes of one attempt, over an open version. For one task thread, except `abort`, which any thread may call.
 */
final class WriteSession private[store] (base: OpenVersion) {
  import WriteSession._

  private val store = base.store
  private val client = store.client
  private val local = base.local
  private val uid = PartitionStore.newUid()
  private val version = base.pin.version
  private val ident = Segment.deltaIdent(version + 1, uid)

  /** Layers that iterators or the stager may hold: they do not change any more. Newest first, staged ones last. */
  private var frozen: List[Layer] = Nil
  private var stagedLayers: List[Layer] = Nil
  private var layer = new Layer(InitialRows)
  private var shared = false
  private var families = base.families
  private var highestId = families.map(_.id).max
  private var familiesChanged = local.families.isEmpty
  private val tombstones = mutable.ArrayBuffer.empty[Tombstone]
  private var live = local.live
  private var written, removed = 0L
  private var held = base.held
  private val lastKey = new LastKey
  private val probe = new Slice

  private var writer: SegmentWriter = _
  private var staging: List[Future[_]] = Nil
  @volatile private var phase: Phase = Updating
  private var hashOf: KeyHash = KeyHash.of(families)

  def pin: Pin = base.pin
  def numKeys: Long = live
  def allFamilies: Seq[Family] = families
  def localBytes: Long = store.localBytes + layer.memoryBytes

  /** Of all families that this lineage is known to have had. */
  def highestFamilyId: Int = math.max(highestId, families.map(_.id).max)
  def hasCommitted: Boolean = phase == Committed
  def isUpdating: Boolean = phase == Updating

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = {
    val hash = hashOf(key, 0, length)
    val found = lookup(hash, key, length, out)
    lastKey.set(key, length, found)
    found
  }

  def put(key: Array[Byte], keyLength: Int, value: Array[Byte], valueLength: Int): Unit = {
    startWrite("put")
    SegmentWriter.checkLimits(keyLength, valueLength, s"put in ${client.id}")
    val hash = hashOf(key, 0, keyLength)
    if (!exists(hash, key, keyLength)) live += 1
    layer.put(hash, key, 0, keyLength, value, 0, valueLength)
    written += 1
    lastKey.set(key, keyLength, found = true)
    stageIfLarge()
  }

  def remove(key: Array[Byte], keyLength: Int): Unit = {
    startWrite("remove")
    val hash = hashOf(key, 0, keyLength)
    if (exists(hash, key, keyLength)) {
      live -= 1
      layer.remove(hash, key, 0, keyLength)
      removed += 1
      lastKey.set(key, keyLength, found = false)
      stageIfLarge()
    }
  }

  /** Rows as they are now; later changes do not show. */
  def iterator(family: Int): RowIterator = {
    shared = true
    local.read(_.over(allLayers).iterator(family, hashOf))
  }

  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = hashOf(prefix, 0, length)
    local.read(_.over(allLayers).prefixScan(hash, prefix, length))
  }

  /** Adds or replaces the description of a family; changes nothing for one that is known so. */
  def defineFamily(family: Family): Unit =
    if (!families.contains(family)) {
      families = families.filter(_.id != family.id) :+ family
      highestId = math.max(highestId, family.id)
      familiesChanged = true
      hashOf = KeyHash.of(families)
    }

  /** Removes a family and its rows; its id is never used again. */
  def removeFamily(id: Int): Unit = {
    startWrite("remove a column family")
    val key, value = new Slice
    val rows = iterator(id)
    while (rows.next(key, value)) live -= 1
    frozen = (layer :: frozen).map(dropFamily(_, id))
    layer = new Layer(InitialRows)
    layer.clear(id)
    tombstones += Tombstone(id, None, None)
    families = families.filter(_.id != id)
    familiesChanged = true
    lastKey.forget()
  }

  /** @return the new version */
  def commit(): Pin = PartitionStore.timed(store.counters.commitMs) {
    if (phase != Updating) throw new InternalException(s"commit of $ident of ${client.id} in phase $phase.")
    takeOver()
    val pin = Pin(version + 1, uid)
    val (entry, rest) = encode()
    client.commit(store.holder(), base.pin, uid, entry, rest, writer.allFields)
    phase = Committed
    val layers = allLayers.filterNot(_.isEmpty)
    store.install(local, pin, entry, families, layers)
    store.counters.rowsWritten.addAndGet(written)
    store.counters.rowsRemoved.addAndGet(removed)
    log.info(s"committed ${client.id} version ${pin.version}: ${entry.rows} rows, ${entry.bytes} bytes, ${entry.live} keys")
    pin
  }

  /** Gives the attempt up. May come twice, from any thread, with Redis down; never throws. */
  def abort(): Unit =
    if (phase == Updating) {
      phase = Aborted
      if (staging.nonEmpty) client.abort(ident)
    }

  private def lookup(hash: Int, key: Array[Byte], length: Int, out: Slice): Boolean = {
    var rest = allLayers
    while (rest.nonEmpty) {
      val entry = rest.head.find(hash, key, 0, length)
      if (entry >= 0) {
        if (rest.head.isRemoved(entry)) return false
        rest.head.value(entry, out)
        return true
      }
      if (rest.head.clearedFamilies.nonEmpty && rest.head.clearedFamilies(Layer.familyOf(key, 0))) return false
      rest = rest.tail
    }
    local.read(_.get(hash, key, 0, length, out))
  }

  private def allLayers: List[Layer] = layer :: frozen ::: stagedLayers

  private def exists(hash: Int, key: Array[Byte], length: Int): Boolean =
    if (lastKey.is(key, length)) lastKey.found else lookup(hash, key, length, probe)

  private def startWrite(what: String): Unit = {
    if (phase != Updating) throw new InternalException(s"$what in ${client.id} after commit or abort.")
    takeOver()
    if (shared) {
      frozen = layer :: frozen
      layer = new Layer(InitialRows)
      shared = false
    }
  }

  private def takeOver(): Unit =
    if (!held) {
      store.takeOver(base.pin)
      held = true
    }

  /** Large write sets leave for Redis while the task goes on. */
  private def stageIfLarge(): Unit =
    if (layer.usedBytes > StageBytes) {
      if (writer == null) writer = new SegmentWriter(ident, Bucketing.bucketsFor(layer.rows * 4L, layer.usedBytes * 4L))
      val full = if (frozen.isEmpty) layer else Layer.merge(layer :: frozen)
      stagedLayers = full :: stagedLayers
      frozen = Nil
      layer = new Layer(full.rows)
      shared = false
      val segment = writer
      staging ::= Background.staging {
        if (phase == Updating) {
          full.foreachBucket(segment.buckets)(segment.add)
          client.stage(ident, ident, segment.takeFresh())
        }
      }
    }

  private def encode(): (Entry, Seq[EncodedField]) = {
    staging.reverse.foreach { staged =>
      try staged.get()
      catch { case e: ExecutionException => throw rootOf(e) }
    }
    val rest = if (frozen.isEmpty) layer else Layer.merge(layer :: frozen)
    if (writer == null) writer = new SegmentWriter(ident, Bucketing.bucketsFor(rest.rows.toLong, rest.usedBytes.toLong))
    rest.foreachBucket(writer.buckets)(writer.add)
    val table = if (familiesChanged) Some(families.sortBy(_.id)) else None
    val entry = writer.finish(base.pin.uid, live, table, tombstones.toSeq)
    (entry, writer.takeFresh())
  }

  private def rootOf(e: ExecutionException): RuntimeException = e.getCause match {
    case named: RedisStateException => named
    case other => new InternalException(s"staging $ident of ${client.id} failed.", other)
  }

  private def dropFamily(old: Layer, id: Int): Layer = {
    val kept = new Layer(old.rows)
    old.clearedFamilies.foreach(kept.clear)
    old.entries().foreach { e =>
      val key = old.keyOffset(e)
      if (Layer.familyOf(old.bytes, key) != id) {
        if (old.isRemoved(e)) kept.remove(old.hashOf(e), old.bytes, key, old.keyLength(e))
        else kept.put(old.hashOf(e), old.bytes, key, old.keyLength(e), old.bytes, old.valueOffset(e), old.valueLength(e))
      }
    }
    if (staging.nonEmpty) throw new FormatException(s"a column family of ${client.id} cannot be removed after " +
      "more than 4 MiB of changes in the same batch.")
    kept
  }
}

object WriteSession {
  private val log = LoggerFactory.getLogger(classOf[WriteSession])
  private val InitialRows = 256
  private val StageBytes = 4 << 20

  private sealed trait Phase
  private case object Updating extends Phase
  private case object Committed extends Phase
  private case object Aborted extends Phase

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
