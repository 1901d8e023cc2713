package org.redisstate.core.store

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.redisstate.core.errors._
import org.redisstate.core.format._
import org.redisstate.core.ids.{Pin, RegisteredRun}
import org.redisstate.core.local._
import org.redisstate.core.protocol.{
  CheckpointFormat,
  Opened,
  PartitionClient,
  RetainReport,
  SegmentGone
}
import org.redisstate.core.store.loading.{LayerLoader, Purpose}
import org.redisstate.core.store.resources.{MemoryBudget, StoreCounters, StoreRoom}

/**
 * One partition of a store on this executor: opens versions, keeps the current and the previous
 * one, and does their maintenance. Thread-safe.
 *
 * @param runId of the query run that this store serves
 * @param run its epoch, asked for at the first write
 * @param defaultFamily family 0, as the first commit describes it
 * @param taken told each time that the run has taken the partition
 * @param counters where it counts what it does
 * @param sizes of layers
 * @param ttlMs time to live of rows that are written
 * @param previewEveryMs time between two previews of a batch that runs
 */
final class PartitionVersions(
    val client: PartitionClient,
    runId: String,
    run: () => RegisteredRun,
    defaultFamily: Family,
    validator: RowValidator,
    budget: MemoryBudget,
    taken: () => Unit = () => (),
    val counters: StoreCounters = new StoreCounters,
    private[store] val sizes: LayerSizes = LayerSizes.Default,
    private[store] override val ttlMs: Option[Long] = None,
    private[store] override val previewEveryMs: Option[Long] = None)
    extends VersionKeeper
    with AutoCloseable {
  import PartitionVersions._
  import StoreCounters.timed

  @volatile private var confirmed: Pin = Pin.Empty
  @volatile private var snapshotWanted = false
  @volatile private var newestSnapshot = -1L

  /** Rows and bytes that the last commit changed: the next write set starts with room for as many. */
  @volatile private var lastChange = (SmallRows, SmallBytes)

  /** The version opened last, and the time of the version on top of it: attempts of a batch share it. */
  @volatile private var lastTime: (Pin, Long) = (Pin.Empty, 0L)
  private[store] val cache = new VersionCache(budget, Some(client.segments))
  private val room = new StoreRoom(budget, counters, () => cache.recount())
  private val loader =
    new VersionLoader(client, validator, counters, room, sizes, () => cache.isClosed)
  private val snapshots = new SnapshotWriter(client, room)
  private val hotRuns = new HotRunWriter(client, () => loader.segments(), room, sizes)
  private val compaction = new Compaction(client, cache, room, sizes, counters)

  /**
   * @param uid of the attempt that wrote the version; None for the one that the query went on with
   * @param forBatch whether a batch of the run reads the version, and not who looks into the state
   * @throws org.redisstate.core.errors.RedisStateException named: lost, expired, fenced,
   * unavailable …
   */
  def open(
      version: Long,
      uid: Option[String] = None,
      forBatch: Boolean = false): OpenVersion = timed(counters.openNs) {
    counters.opens.incrementAndGet()
    val held = cache.versions
    val opened = client.open(
      runId,
      Some(version),
      uid,
      held.map(_.pin),
      withTime = ttlMs.nonEmpty,
      hotRuns = client.isBounded)
    val known = held.find(_.pin == opened.pin)
    val local = known match {
      case Some(hit) =>
        counters.cacheHits.incrementAndGet()
        hit
      case None =>
        counters.cacheMisses.incrementAndGet()
        val loaded = timed(counters.loadNs)(loader.load(opened, held, Purpose.Keep))
        cache.remember(loaded)
        loaded
    }
    if (opened.held) confirmed = opened.pin
    counters.version.set(opened.pin.version)
    log.debug(
      "opened {} version {}: {}",
      client.id,
      version: java.lang.Long,
      if (known.isEmpty) "loaded" else "cached")
    new OpenVersion(
      this,
      local,
      opened.held,
      byUid = uid.isDefined,
      nextS = timeAbove(opened, local),
      forBatch = forBatch || opened.held)
  }

  private def timeAbove(opened: Opened, local: LocalVersion): Long = {
    val (pin, timeS) = lastTime
    if (opened.timeS == 0) local.timeS
    else if (pin == opened.pin && timeS > 0) timeS
    else {
      val next = math.max(opened.timeS, local.timeS)
      lastTime = (opened.pin, next)
      next
    }
  }

  /**
   * Opens a version for one pass over its rows. Those of one hashed family in one segment are read as
   * the pass comes to them, and not kept; all else is opened as usual.
   *
   * @throws org.redisstate.core.errors.RedisStateException as `open`
   */
  def openOnce(version: Long, uid: Option[String]): OpenVersion = {
    val opened = client.open(runId, Some(version), uid, Nil)
    val whole = Some(opened.segments).collect {
      case Seq(one) if one.isSnapshot || one.entry.complete =>
        loader.load(opened, Nil, Purpose.Stream)
    }
    whole.filter(_.hasOneHashedFamily)
      .fold(open(version, uid))(new OpenVersion(this, _, opened.held, byUid = uid.isDefined))
  }

  /**
   * Opens a version as if it held nothing, be it there or not; what is written over it replaces
   * everything.
   */
  def openEmpty(version: Long): OpenVersion = timed(counters.openNs) {
    counters.opens.incrementAndGet()
    val (pin, held, nextS) = client.openIfThere(runId, version, ttlMs.nonEmpty) match {
      case Right(opened) =>
        if (opened.held) confirmed = opened.pin
        (opened.pin, opened.held, math.max(opened.timeS, opened.time.getOrElse(0L)))
      case Left(timeS) => (Pin.absent(version), false, timeS)
    }
    val nothing =
      new LocalVersion(
        pin,
        LiveRows.None,
        FamilyTable.Empty,
        Content.empty(),
        History.Empty,
        _ => Content.empty())
    new OpenVersion(this, nothing, held, isAlone = true, nextS = nextS)
  }

  private[store] override def prefetch(version: LocalVersion): Option[Prefetch] =
    resolved(version).filter(_.base.isInFiles)
      .map(new Prefetch(_, version.hashOf, budget, counters))

  /** Rows of a version, also where they made way. An error is left to who asks for a row. */
  private def resolved(version: LocalVersion): Option[Content] =
    try Some(version.content)
    catch { case NonFatal(_) => None }

  private[store] override def changes(version: LocalVersion, family: Int): ChangeIterator = {
    val segments = loader.segments()
    val layers = new LayerLoader(segments.whole, sizes)
    new VersionChanges(open(_).local, client, segments, layers).of(version, family)
  }

  /** Returns whether this store opened a version. */
  def owns(opened: OpenVersion): Boolean = opened.store eq this

  override def localBytes: Long = cache.localBytes

  private[store] override def grown(session: HeldRows): Unit = cache.grown(session)

  private[store] override def ended(session: HeldRows): Unit = cache.ended(session)

  /**
   * Adds a snapshot of the version opened last when what has changed since the newest one weighs more
   * than half of it. In a bounded partition the changes are merged into a hot run before.
   */
  def snapshotIfDue(): Boolean = timed(counters.maintenanceNs) {
    cache.versions.find(v => v.pin == confirmed && v.pin.version > 0).exists { version =>
      if (client.isBounded && version.history.isHotRunDue && !snapshotWanted) addHotRun(version)
      (version.history.isDue || snapshotWanted) && trySnapshot(version)
    }
  }

  private def addHotRun(version: LocalVersion): Unit =
    try hotRuns.write(version).foreach(cache.merged(version, _))
    catch {
      // No version needs a hot run, and the next base may be written from memory.
      case e @ (_: SegmentGone | _: LimitException | _: FormatException | _: FileLostException) =>
        log.info("no hot run of {} now: {}", client.id, e.getMessage: Any)
    }

  /** Adds a snapshot of a version that was committed or opened here lately. */
  def addSnapshot(pin: Pin): Boolean = timed(counters.maintenanceNs) {
    cache.find(pin).exists(trySnapshot)
  }

  /** The version of the newest snapshot that this store added, or -1. */
  def snapshotVersion: Long = newestSnapshot

  /** The next maintenance adds a snapshot even if none is due. */
  def requestSnapshot(): Unit = snapshotWanted = true

  def retain(): RetainReport = timed(counters.maintenanceNs)(client.retain())

  override def close(): Unit = cache.close()

  private[store] override def holder(): RegisteredRun = run()

  private[store] override def takeOver(pin: Pin, byUid: Boolean): Unit = {
    if (byUid && client.format == CheckpointFormat.V1) {
      throw new ConfigException(
        s"acquire ${client.id} at version ${pin.version}: the checkpoint's commit log is of format 2, " +
          "and Spark does not go back to format 1. Set spark.sql.streaming.stateStore.checkpointFormatVersion to 2.")
    }
    client.acquire(run(), pin)
    confirmed = pin
    taken()
  }

  private[store] override def families(local: LocalVersion): Seq[Family] =
    if (local.families.isEmpty) Seq(defaultFamily) else local.families

  private[store] override def newLayer(): Layer = {
    val (rows, bytes) = lastChange
    new Layer(rows, bytes)
  }

  private[store] override def install(
      base: LocalVersion,
      pin: Pin,
      entry: Entry,
      table: FamilyTable,
      layers: List[Layer]): Unit = {
    // What memory had no room for is read when it is asked for: the commit is done, and must not fail any more.
    val content = base.here.map(_.over(layers)).orNull
    cache.rememberAfter(base) { before =>
      val history =
        if (entry.complete) History(entry.bytes, Nil)
        else before.plus(DeltaSize(pin.version, entry.bytes))
      new LocalVersion(
        pin,
        LiveRows.of(entry),
        table,
        content,
        history,
        loader.reload,
        entry.time,
        Some(base.pin))
    }
    lastChange = (
      math.min(layers.iterator.map(_.rows).sum, RoomRowsMax),
      math.min(layers.iterator.map(_.usedBytes).sum, RoomBytesMax))
    budget.check()
    compaction.soon()
  }

  private def trySnapshot(version: LocalVersion): Boolean =
    try writeSnapshot(version)
    catch {
      case e: SegmentGone =>
        log.info("no snapshot of {} now: {} was replaced meanwhile", client.id, e.segment.ident)
        false
    }

  /**
   * Writes a snapshot. Rows are folded into the base where memory has room; else they pass through.
   */
  private def writeSnapshot(version: LocalVersion): Boolean = {
    try version.read(old => compaction.foldAll(version, old))
    catch {
      case e: LimitException => log.info("{} is not folded: {}", client.id, e.getMessage: Any)
    }
    val families = this.families(version)
    val (content, written) =
      version.read(content => content -> snapshotOf(version, content, families))
    written.foreach { snapshot =>
      val entry = snapshot.segment.entry
      counters.snapshots.incrementAndGet()
      snapshotWanted = false
      newestSnapshot = math.max(newestSnapshot, version.pin.version)
      log.info(
        s"added a snapshot of ${client.id} version ${version.pin.version}: " +
          s"${entry.rows} rows, ${entry.bytes} bytes")
      stand(version, content, snapshot)
      cache.forgetDeltas(version, entry.bytes)
      if (version.expiry.isOn) cache.recountRows(version, entry.live)
    }
    written.nonEmpty
  }

  private def snapshotOf(
      version: LocalVersion,
      content: Content,
      families: Seq[Family]): Option[WrittenSnapshot] = {
    def apart = snapshots.write(version, loader.withoutLayers(version.pin), families)
    if (!compaction.canMerge(content)) apart
    else {
      try snapshots.write(version, content, families)
      catch { case _: LimitException => apart } // lists that grow in a layer take more room there
    }
  }

  /** Attaches a snapshot to its version, whose rows can be read from Redis from now on. */
  private def stand(version: LocalVersion, old: Content, snapshot: WrittenSnapshot): Unit = {
    val segments = loader.segments()
    val head = segments.heads(Seq(snapshot.segment)).head
    if (old.layers.isEmpty && old.base.buckets == snapshot.segment.entry.buckets)
      segments.attach(old.base, head)(snapshot.fill)
    else cache.share(version, old, new Content(segments.base(head), Nil))
    cache.recount()
    budget.check()
  }
}

object PartitionVersions {
  private val log = LoggerFactory.getLogger(classOf[PartitionVersions])
  private val SmallRows = 64
  private val SmallBytes = 4 << 10
  private val RoomRowsMax = 1 << 16
  private val RoomBytesMax = 4 << 20
}
