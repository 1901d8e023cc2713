package org.redisstate.core.store

import java.util.UUID

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.StateLostException
import org.redisstate.core.format._
import org.redisstate.core.ids.{Pin, Run}
import org.redisstate.core.local._
import org.redisstate.core.protocol.{Opened, PartitionClient, RetainReport, SegmentGone}

/**
 * One partition of a store on this executor: opens versions, keeps the current and the previous one, and does their maintenance.
 * Thread-safe.
 *
 * @param runId of the query run that this store serves
 * @param run its epoch, asked for at the first write
 * @param defaultFamily family 0, as the first commit describes it
 */
final class PartitionStore(
    val client: PartitionClient,
    runId: String,
    run: () => Run,
    defaultFamily: Family,
    validator: RowValidator,
    budget: MemoryBudget)
    extends AutoCloseable {
  import PartitionStore._

  val counters: StoreCounters = new StoreCounters
  @volatile private var closed = false

  /** Newest first: the version committed or opened last, and the one before it. */
  @volatile private var cached: List[LocalVersion] = Nil
  @volatile private var confirmed: Pin = Pin.Empty
  @volatile private var snapshotWanted = false
  budget.register(this)

  /** @throws org.redisstate.core.errors.RedisStateException named: lost, expired, fenced, unavailable … */
  def open(version: Long): OpenVersion = timed(counters.openMs) {
    val opened = client.open(runId, Some(version), cached.map(_.pin))
    val known = cached.find(_.pin == opened.pin)
    val local = known match {
      case Some(hit) =>
        counters.cacheHits.incrementAndGet()
        hit
      case None =>
        counters.cacheMisses.incrementAndGet()
        val loaded = timed(counters.loadMs)(load(opened))
        remember(loaded)
        loaded
    }
    if (opened.held) confirmed = opened.pin
    log.debug("opened {} version {}: {}", client.id, version: java.lang.Long, if (known.isEmpty) "loaded" else "cached")
    new OpenVersion(this, local, opened.held)
  }

  /** Whether a version was opened by this store. */
  def owns(opened: OpenVersion): Boolean = opened.store eq this

  def localBytes: Long = {
    val versions = cached.map(_.content)
    versions.map(_.base).distinct.map(_.memoryBytes).sum + versions.flatMap(_.layers).distinct.map(_.memoryBytes).sum
  }

  /** Adds a snapshot of the version opened last when the deltas since the newest one weigh more than half of it. */
  def snapshotIfDue(): Boolean = timed(counters.maintenanceMs) {
    cached.find(v => v.pin == confirmed && v.pin.version > 0).exists { version =>
      val deltaBytes = version.deltas.map(_.bytes).sum
      val due = version.deltas.size >= DeltasMin &&
        (deltaBytes * 2 > version.snapshotBytes || version.deltas.size >= DeltasMax)
      (due || snapshotWanted) && writeSnapshot(version)
    }
  }

  /** The next maintenance adds a snapshot even if none is due. */
  def requestSnapshot(): Unit = snapshotWanted = true

  def retain(): RetainReport = timed(counters.maintenanceMs)(client.retain())

  override def close(): Unit = {
    closed = true
    budget.unregister(this)
    cached = Nil
  }

  private[store] def holder(): Run = run()
  private[store] def takeOver(pin: Pin): Unit = {
    client.acquire(run(), pin)
    confirmed = pin
  }
  private[store] def families(local: LocalVersion): Seq[Family] =
    if (local.families.isEmpty) Seq(defaultFamily) else local.families

  /** Makes a committed version the current one. */
  private[store] def install(base: LocalVersion, pin: Pin, entry: Entry, families: Seq[Family], layers: List[Layer]): Unit = {
    val version = new LocalVersion(
      pin,
      entry.live,
      families,
      base.content.over(layers),
      base.snapshotBytes,
      DeltaSize(pin.version, entry.bytes) :: base.deltas,
      reload)
    remember(version)
    if (isHeavy(base.content)) Background.helping(s"compaction of ${client.id}")(compact(base))
    budget.checkSoon()
  }

  /** Decoded buckets become compressed ones. */
  private[store] def shrink(everything: Boolean): Unit =
    cached.map(_.content.base).distinct.foreach(_.compress(everything))

  private def remember(version: LocalVersion): Unit = synchronized {
    if (!closed) cached = (version :: cached.filter(_.pin != version.pin)).take(VersionsCached)
  }

  /** Brings the layers of a version into its base, or into one layer, and lets newer versions share the result. */
  private def compact(version: LocalVersion): Unit = {
    val old = version.content
    if (!closed && isHeavy(old)) {
      old.base.loadAll(() => closed)
      val now =
        if (old.layerBytes * 4 > old.base.memoryBytes) Content.fold(old, version.hashOf)
        else new Content(old.base, List(Layer.merge(old.layers)))
      version.replace(old, now)
      cached.foreach { newer =>
        val content = newer.content
        val above = content.layers.length - old.layers.length
        if ((newer ne version) && (content.base eq old.base) && above >= 0 && (content.layers.drop(above) eq old.layers)) {
          newer.replace(content, now.over(content.layers.take(above)))
        }
      }
    }
  }

  private def isHeavy(content: Content): Boolean =
    content.layers.length > LayersMax ||
      (content.layers.length > 1 && content.layerBytes * 4 > content.base.memoryBytes)

  private def writeSnapshot(version: LocalVersion): Boolean = {
    val rows = version.read { content =>
      val folded = Content.fold(content, version.hashOf)
      version.replace(content, folded)
      folded.base
    }
    val writer = newUid()
    val segment = new SegmentWriter(Segment.snapshotIdent(version.pin.version, writer), rows.buckets)
    version.read(_ => (0 until rows.buckets).foreach(b => segment.add(b, rows.bucket(b))))
    val entry = segment.finish(writer, version.live, Some(families(version)), Nil)
    val added = client.addSnapshot(version.pin, writer, segment.allFields, entry)
    if (added) {
      counters.snapshots.incrementAndGet()
      snapshotWanted = false
      log.info(s"added a snapshot of ${client.id} version ${version.pin.version}: ${entry.rows} rows, ${entry.bytes} bytes")
      forgetDeltas(version.pin.version, entry.bytes)
    }
    added
  }

  private def forgetDeltas(version: Long, bytes: Long): Unit = synchronized {
    cached = cached.map { v =>
      new LocalVersion(v.pin, v.live, v.families, v.content, bytes, v.deltas.filter(_.version > version), reload)
    }
  }

  /** Builds a version from what `open` listed; starts again when maintenance replaces a segment under the load. */
  private def load(first: Opened): LocalVersion = {
    var opened = first
    var tries = 0
    while (true) {
      try return build(opened)
      catch {
        case e: SegmentGone =>
          val again = client.open("", Some(first.pin.version), Nil)
          val unchanged = again.segments.exists(s => s == e.segment)
          tries += 1
          if (unchanged || tries > LoadsMax || again.pin != first.pin) {
            throw new StateLostException(s"load version ${first.pin.version} of ${client.id}: ${e.segment.ident} is in the " +
              "manifest, but blocks of it are missing. Likely: eviction, or a restart from an older copy of the " +
              "data. Ways on: restore that Redis; rewind the checkpoint; start a new one.")
          }
          opened = again
      }
    }
    throw new IllegalStateException
  }

  private def build(opened: Opened): LocalVersion = {
    val loader = new SegmentLoader(client, validator, counters)
    val start = cached.find(v => v.pin == opened.start && v.pin.version > 0)
    var content = start.fold(Content.empty())(_.content)
    var families = start.fold(Seq.empty[Family])(_.families)
    var snapshotBytes = start.fold(0L)(_.snapshotBytes)
    var deltas = start.fold(List.empty[DeltaSize])(_.deltas)
    opened.segments.reverseIterator.foreach { segment =>
      loader.knownFamilies = families
      if (segment.isSnapshot) {
        val header = loader.header(segment)
        families = header.families.getOrElse(families)
        val base = loader.base(segment, header)
        content = new Content(base, Nil)
        snapshotBytes = segment.entry.bytes
        deltas = Nil
        readAhead(base)
      } else {
        val (header, layer) = loader.layer(segment)
        families = header.families.getOrElse(families)
        if (segment.entry.complete) content = Content.empty()
        if (!layer.isEmpty) content = content.over(List(layer))
        deltas = DeltaSize(segment.version, segment.entry.bytes) :: deltas
      }
    }
    val live = opened.segments.headOption.map(_.entry.live).orElse(start.map(_.live)).getOrElse(0L)
    new LocalVersion(opened.pin, live, families, content, snapshotBytes, deltas, reload)
  }

  private def readAhead(base: Base): Unit =
    Background.helping(s"read-ahead of ${client.id}") {
      try base.loadAll(() => closed)
      catch { case _: SegmentGone => log.info("read-ahead of {} ended: its snapshot was replaced", client.id) }
    }

  private def reload(pin: Pin): Content = {
    val opened = client.open("", Some(pin.version), Nil)
    if (opened.pin != pin) {
      throw new StateLostException(s"read version ${pin.version} of ${client.id}: it was replaced while this task read it.")
    }
    load(opened).content
  }
}

object PartitionStore {
  private val log = LoggerFactory.getLogger(classOf[PartitionStore])
  private val VersionsCached = 2
  private val LayersMax = 8
  private val DeltasMin = 4
  private val DeltasMax = 200
  private val LoadsMax = 5

  def newUid(): String = UUID.randomUUID().toString.replace("-", "")

  private[store] def timed[A](total: java.util.concurrent.atomic.AtomicLong)(body: => A): A = {
    val from = System.nanoTime()
    try body
    finally {
      total.addAndGet((System.nanoTime() - from) / 1000000L)
      ()
    }
  }
}
