package org.redisstate.core.store

import java.util.{Collections, WeakHashMap}
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._

import org.slf4j.LoggerFactory

import org.redisstate.core.errors._
import org.redisstate.core.format._
import org.redisstate.core.ids.{Pin, RegisteredRun}
import org.redisstate.core.local._
import org.redisstate.core.protocol.{CheckpointFormat, PartitionClient, RetainReport, SegmentGone}

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
    private[store] val sizes: LayerSizes = LayerSizes.Default)
    extends VersionKeeper
    with Evictable
    with AutoCloseable {
  import PartitionVersions._
  import StoreCounters.timed

  @volatile private var closed = false

  /** Newest first: the version committed or opened last, and the one before it. */
  @volatile private var cached: List[LocalVersion] = Nil
  @volatile private var confirmed: Pin = Pin.Empty
  @volatile private var snapshotWanted = false
  @volatile private var newestSnapshot = -1L

  /** Rows and bytes that the last commit changed: the next write set starts with room for as many. */
  @volatile private var lastChange = (SmallRows, SmallBytes)
  private val compacting = new AtomicBoolean

  /** What the budget was told that this store holds. */
  private var counted, countedSessions = 0L
  private val countLock = new Object

  /** Write sets in progress; one that is neither committed nor aborted counts until it is collected. */
  private val sessions =
    Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap[
      HeldRows,
      java.lang.Boolean]))
  private val room = new StoreRoom(budget, counters, () => recount())
  private val loader = new VersionLoader(client, validator, counters, room, sizes, () => closed)
  private val snapshots = new SnapshotWriter(client, room)
  budget.register(this)

  /**
   * @param uid of the attempt that wrote the version; None for the one that the query went on with
   * @throws org.redisstate.core.errors.RedisStateException named: lost, expired, fenced,
   * unavailable …
   */
  def open(version: Long, uid: Option[String] = None): OpenVersion = timed(counters.openNs) {
    counters.opens.incrementAndGet()
    val held = cached
    val opened = client.open(runId, Some(version), uid, held.map(_.pin))
    val known = held.find(_.pin == opened.pin)
    val local = known match {
      case Some(hit) =>
        counters.cacheHits.incrementAndGet()
        hit
      case None =>
        counters.cacheMisses.incrementAndGet()
        val loaded = timed(counters.loadNs)(loader.load(opened, held))
        remember(loaded)
        loaded
    }
    if (opened.held) confirmed = opened.pin
    log.debug(
      "opened {} version {}: {}",
      client.id,
      version: java.lang.Long,
      if (known.isEmpty) "loaded" else "cached")
    new OpenVersion(this, local, opened.held, byUid = uid.isDefined)
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
      case Seq(one) if one.isSnapshot || one.entry.complete => loader.load(opened, Nil, once = true)
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
    val (pin, held) =
      try {
        val opened = client.open(runId, Some(version), None, Nil)
        if (opened.held) confirmed = opened.pin
        (opened.pin, opened.held)
      } catch {
        case _: StateLostException | _: VersionExpiredException => (Pin.absent(version), false)
      }
    val nothing =
      new LocalVersion(
        pin,
        LiveRows.None,
        FamilyTable.Empty,
        Content.empty(),
        History.Empty,
        _ => Content.empty())
    new OpenVersion(this, nothing, held, isAlone = true)
  }

  private[store] override def changes(version: LocalVersion, family: Int): ChangeIterator = {
    val segments = loader.segments()
    val layers = new LayerLoader(client, segments.decoder, counters, sizes)
    new VersionChanges(open(_).local, client, segments, layers).of(version, family)
  }

  /** Whether a version was opened by this store. */
  def owns(opened: OpenVersion): Boolean = opened.store eq this

  override def localBytes: Long = {
    val versions = cached.flatMap(_.here)
    versions.map(_.base).distinct.map(_.memoryBytes).sum + versions.flatMap(_.layers).distinct.map(
      _.memoryBytes).sum
  }

  private def sessionBytes: Long =
    if (sessions.isEmpty) 0L
    else sessions.synchronized(sessions.asScala.iterator.map(_.heldBytes).sum)

  private[store] override def grown(session: HeldRows): Unit = {
    sessions.add(session)
    recount()
    budget.check()
  }

  private[store] override def ended(session: HeldRows): Unit =
    if (sessions.remove(session)) recount()

  /** Tells the budget what this store holds now. */
  private[store] def recount(): Unit = countLock.synchronized {
    val inSessions = sessionBytes
    val now = (if (closed) 0L else localBytes) + inSessions
    budget.adjust(now - counted, inSessions - countedSessions)
    counted = now
    countedSessions = inSessions
  }

  /**
   * Adds a snapshot of the version opened last when the deltas since the newest one weigh more than
   * half of it.
   */
  def snapshotIfDue(): Boolean = timed(counters.maintenanceNs) {
    cached.find(v => v.pin == confirmed && v.pin.version > 0).exists { version =>
      val history = version.history
      val due = history.deltas.size >= DeltasMin &&
        (history.deltaBytes * 2 > history.snapshotBytes || history.deltas.size >= DeltasMax)
      (due || snapshotWanted) && trySnapshot(version)
    }
  }

  /** Adds a snapshot of a version that was committed or opened here lately. */
  def addSnapshot(pin: Pin): Boolean = timed(counters.maintenanceNs) {
    cached.find(_.pin == pin).exists(trySnapshot)
  }

  /** The version of the newest snapshot that this store added, or -1. */
  def snapshotVersion: Long = newestSnapshot

  /** The next maintenance adds a snapshot even if none is due. */
  def requestSnapshot(): Unit = snapshotWanted = true

  def retain(): RetainReport = timed(counters.maintenanceNs)(client.retain())

  override def close(): Unit = {
    // Who is about to cache a version has done so, or sees that it is too late.
    synchronized {
      closed = true
      // A task may still read them, and nobody counts what it reads.
      bases(cached).foreach(_.counted(false))
      cached = Nil
    }
    budget.unregister(this)
    recount()
  }

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
    synchronized {
      val history =
        if (entry.complete) History(entry.bytes, Nil)
        else base.history.plus(DeltaSize(pin.version, entry.bytes))
      remember(new LocalVersion(
        pin,
        LiveRows.of(entry),
        table,
        content,
        history,
        loader.reload))
    }
    lastChange = (
      math.min(layers.iterator.map(_.rows).sum, RoomRowsMax),
      math.min(layers.iterator.map(_.usedBytes).sum, RoomBytesMax))
    budget.check()
    compactSoon()
  }

  private[store] override def shrink(bytes: Long, everything: Boolean): Long =
    free(bytes)((base, wanted) => base.compress(wanted, everything))

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

  private def bases(versions: List[LocalVersion]): List[Base] =
    versions.flatMap(_.here).map(_.base).distinct

  private def remember(version: LocalVersion): Unit = synchronized {
    if (!closed) {
      val before = bases(cached)
      cached = (version :: cached.filter(_.pin != version.pin)).take(VersionsCached)
      countOnly(before)
    }
  }

  /** What is not cached any more is not counted any more, whoever may still read it. */
  private def countOnly(before: List[Base]): Unit = {
    val now = bases(cached)
    now.foreach(_.counted(true))
    before.filterNot(now.contains).foreach(_.counted(false))
    recount()
  }

  /**
   * At most one compaction waits or runs; it takes the version that is the previous one by then.
   */
  private def compactSoon(): Unit =
    if (cached.lastOption.flatMap(_.here).exists(isHeavy) && compacting.compareAndSet(
        false,
        true)) {
      Background.helping(s"compaction of ${client.id}") {
        try cached.lastOption.foreach(compact)
        finally compacting.set(false)
      }
    }

  /**
   * Brings the layers of a version into its base, or into one layer, and lets newer versions share
   * the result.
   */
  private def compact(version: LocalVersion): Unit =
    if (!version.read(old => closed || !isHeavy(old) || fold(version, old))) {
      version.read { old =>
        if (old.layers.length > ContentLoader.LayersMax)
          Room.taking(room, old.layerBytes)(share(version, old, old.merged(sizes.mergedMax)))
      }
    }

  /** Brings the layers into the base, if they are heavy and memory has room for both; @return whether they are there. */
  private def fold(version: LocalVersion, old: Content): Boolean =
    old.layers.isEmpty || (old.layerBytes * FoldShare > old.base.decodedBytes && canMerge(old) &&
      old.base.loadAll(() => closed) &&
      Room.offered(room, old.base.decodedBytes + 2 * old.layerBytes) {
        share(version, old, Content.fold(old, version.hashOf, room, version.live.all))
      }.nonEmpty)

  /**
   * Puts an equal content in the place of an old one, under the newer versions that stand on it
   * too.
   */
  private def share(version: LocalVersion, old: Content, now: Content): Unit = synchronized {
    val before = bases(cached)
    version.replace(old, now)
    for (newer <- cached; content <- newer.here) {
      val above = content.layers.length - old.layers.length
      if ((newer ne version) && (content.base eq old.base) && above >= 0 && (content.layers.drop(
          above) eq old.layers)) {
        newer.replace(content, now.over(content.layers.take(above)))
      }
    }
    countOnly(before)
  }

  private def canMerge(content: Content): Boolean = content.liveBytes <= sizes.mergedMax

  private def isHeavy(content: Content): Boolean =
    content.layers.length > ContentLoader.LayersMax ||
      (content.layers.length > 1 && content.layerBytes * FoldShare > content.base.decodedBytes)

  private def trySnapshot(version: LocalVersion): Boolean =
    try writeSnapshot(version)
    catch {
      case e: SegmentGone =>
        log.info("no snapshot of {} now: {} was replaced meanwhile", client.id, e.segment.ident)
        false
    }

  /** Where memory has room, the rows are brought into the base, which stays; else they pass through. */
  private def writeSnapshot(version: LocalVersion): Boolean = {
    try version.read(old => foldAll(version, old))
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
      forgetDeltas(version, entry.bytes)
    }
    written.nonEmpty
  }

  private def snapshotOf(
      version: LocalVersion,
      content: Content,
      families: Seq[Family]): Option[WrittenSnapshot] = {
    def apart = snapshots.write(version, loader.withoutLayers(version.pin), families)
    if (!canMerge(content)) apart
    else {
      try snapshots.write(version, content, families)
      catch { case _: LimitException => apart } // lists that grow in a layer take more room there
    }
  }

  private def foldAll(version: LocalVersion, old: Content): Unit =
    if (old.layers.nonEmpty && canMerge(old) && old.base.loadAll(() => closed)) {
      Room.offered(room, old.base.decodedBytes + 2 * old.layerBytes) {
        share(version, old, Content.fold(old, version.hashOf, room, version.live.all))
      }
      ()
    }

  /** From now on the rows of a version can be read again from its snapshot. */
  private def stand(version: LocalVersion, old: Content, snapshot: WrittenSnapshot): Unit = {
    val segments = loader.segments()
    val head = segments.heads(Seq(snapshot.segment)).head
    if (old.layers.isEmpty && old.base.buckets == snapshot.segment.entry.buckets)
      segments.attach(old.base, head)(snapshot.fill)
    else share(version, old, new Content(segments.base(head), Nil))
    recount()
    budget.check()
  }

  private def forgetDeltas(snapshot: LocalVersion, bytes: Long): Unit = synchronized {
    (snapshot :: cached).distinct.filter(_.pin.version >= snapshot.pin.version).foreach { v =>
      v.history = v.history.since(snapshot.pin.version, bytes)
    }
  }
}

object PartitionVersions {
  private val log = LoggerFactory.getLogger(classOf[PartitionVersions])
  private val VersionsCached = 2

  /** Layers that hold more than this part of the base's bytes are folded into it. */
  private val FoldShare = 8
  private[core] val DeltasMin = 4
  private[core] val DeltasMax = 200
  private val SmallRows = 64
  private val SmallBytes = 4 << 10
  private val RoomRowsMax = 1 << 16
  private val RoomBytesMax = 4 << 20
}
