package org.apache.spark.sql.redisstate.executor

import java.nio.file.Paths
import java.util.{Collections, WeakHashMap}
import java.util.concurrent.{Executors, ScheduledExecutorService, TimeUnit}
import java.util.concurrent.atomic.AtomicReference

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.json4s.JObject
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.conf.QuotaLimits
import org.apache.spark.util.Utils

import org.redisstate.core.backend.{
  Clock,
  ConnectionSettings,
  RedisBackend,
  ServerChecks,
  Transports
}
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.places.LocalDisk
import org.redisstate.core.protocol.{InstanceReport, PartitionClient, RunRegistry}
import org.redisstate.core.store.resources.{MemoryBudget, StoreCounters}

/**
 * Resources that all stores of one executor process share: a connection pool for each server, with
 * a heartbeat that reports the instances and renews ephemeral checkpoints, one memory budget, and
 * one local disk.
 */
private[redisstate] object ExecutorRegistry extends Logging {
  val InstanceTtlMs: Long = 60000L
  private[redisstate] val HeartbeatMs = InstanceTtlMs / 3

  /** Partitions whose recent figures are kept for the next provider. */
  private val FiguresMax = 4096

  /** Waits of one try at most: to connect, to log in, to choose a database and to be answered. */
  private val WaitsATry = 6L

  /**
   * A server with its users. Each has a thread of its own, since a server that is down blocks its
   * thread.
   */
  private final class Shared(val backend: RedisBackend) {

    @GuardedBy("ExecutorRegistry") var users = 0

    /** Instances in the order in which they registered. */
    @GuardedBy("ExecutorRegistry") val instances = mutable.LinkedHashSet.empty[Instance]

    /** Quotas that an instance or a driver's pulse still references. */
    @GuardedBy("ExecutorRegistry") val quotas: java.util.Set[StateQuota] =
      Collections.newSetFromMap(new WeakHashMap[StateQuota, java.lang.Boolean])

    /** Thread of the heartbeat, made with the first instance. */
    @GuardedBy("ExecutorRegistry") var heartbeat: Option[ScheduledExecutorService] = None
  }

  /**
   * A provider that writes a partition. Two of one partition are told apart by identity, not by
   * partition: Spark may close an unloaded one long after the next one began.
   *
   * @param keepMs 0, or the expiry of its keys, which the heartbeat renews
   * @param counters of its store, which the heartbeat shows
   * @param quota what its state may have, if there is a limit; the heartbeat looks
   */
  final class Instance(
      val client: PartitionClient,
      val registry: RunRegistry,
      val runId: String,
      val keepMs: Long,
      val counters: StoreCounters,
      val quota: Option[StateQuota]) {
    def id: PartitionId = client.id

    /** Figures of this partition and run in this process, also of earlier providers. */
    private[ExecutorRegistry] val recent: RecentFigures = recentOf(client.id, runId)

    /** Stays true once the instance was unregistered. */
    @GuardedBy("ExecutorRegistry") private[ExecutorRegistry] var isOver = false

    /**
     * True if the table listed the instance at the last report; a later report of another executor
     * replaces it.
     */
    private[ExecutorRegistry] val place = new AtomicReference[ReportState](Unreported)
    def isLost: Boolean = place.get eq Lost

    @volatile private[ExecutorRegistry] var hasRegistered = false

    /** Returns whether the table lists the instance, or will with the next beat. */
    def isShown: Boolean = hasRegistered && !isLost
  }

  private sealed trait ReportState
  private case object Unreported extends ReportState
  private case object Reported extends ReportState
  private case object Lost extends ReportState

  @GuardedBy("this") private val backends = mutable.HashMap.empty[ConnectionSettings, Shared]
  @GuardedBy("this") private var budget: MemoryBudget = _
  @GuardedBy("this") private var disk: LocalDisk = _

  /** The partitions that were served last, the newest last. */
  @GuardedBy("this") private val figures =
    mutable.LinkedHashMap.empty[(PartitionId, String), RecentFigures]

  /** Returns the backend of a server; each call needs one `release`. Connects nothing yet. */
  def acquire(settings: ConnectionSettings): RedisBackend = synchronized {
    val shared = backends.getOrElseUpdate(settings, new Shared(connect(settings)))
    shared.users += 1
    shared.backend
  }

  def release(settings: ConnectionSettings): Unit = released(settings).foreach { unused =>
    unused.heartbeat.foreach(_.shutdown())
    unused.backend.close()
  }

  /** Removes a server without users; its connections are closed outside of the lock. */
  private def released(settings: ConnectionSettings): Option[Shared] = synchronized {
    backends.get(settings).flatMap { shared =>
      shared.users -= 1
      if (shared.users == 0) backends.remove(settings) else None
    }
  }

  /**
   * Shows an instance from its first acquire on; an instance that lost its place to another
   * executor's takes it back.
   */
  def register(settings: ConnectionSettings, instance: Instance): Unit = synchronized {
    backends.get(settings).foreach { shared =>
      if (!instance.isOver) {
        instance.hasRegistered = true
        instance.place.set(Unreported)
        shared.instances -= instance
        shared.instances += instance
        if (shared.heartbeat.isEmpty) shared.heartbeat = Some(heartbeat(shared))
        shared.heartbeat.foreach(_.execute(() => beat(shared)))
      }
    }
  }

  /** Removes exactly this instance, and no other of its partition. */
  def unregister(settings: ConnectionSettings, instance: Instance): Unit = synchronized {
    if (!instance.isOver) instance.recent.end(RecentFigures.of(instance.client, instance.counters))
    instance.isOver = true
    backends.get(settings).foreach(_.instances -= instance)
  }

  /** One for all stores of a checkpoint that have the same limits. */
  def quota(
      settings: ConnectionSettings,
      backend: RedisBackend,
      prefix: String,
      gen: String,
      limits: QuotaLimits): StateQuota = synchronized {
    val known = backends.get(settings).map(_.quotas)
    known.flatMap(_.asScala.find(_.isOf(prefix, gen, limits))).getOrElse {
      val made = new StateQuota(backend, prefix, gen, limits)
      known.foreach(_.add(made))
      made
    }
  }

  /** The first store of the process decides; one executor has one bound. */
  def memoryBudget(bytes: Long): MemoryBudget = synchronized {
    if (budget == null) budget = new MemoryBudget(bytes)
    budget
  }

  /**
   * Returns the disk of the process, as the first store with such a disk has set it.
   *
   * @param folder None for Spark's local folders
   */
  def localDisk(bytes: Long, folder: Option[String]): LocalDisk = synchronized {
    if (disk == null) {
      def ofSpark =
        Option(SparkEnv.get).fold(Seq.empty[String])(env =>
          Utils.getConfiguredLocalDirs(env.conf).toSeq)
      val folders = folder.fold(ofSpark)(Seq(_))
      val parents = if (folders.isEmpty) Seq(System.getProperty("java.io.tmpdir")) else folders
      disk = LocalDisk.of(bytes, parents.map(Paths.get(_)))
    }
    disk
  }

  private def recentOf(id: PartitionId, runId: String): RecentFigures = synchronized {
    val found = figures.remove((id, runId)).getOrElse(new RecentFigures(System.nanoTime()))
    figures.put((id, runId), found)
    if (figures.size > FiguresMax) figures.remove(figures.head._1)
    found.begin()
    found
  }

  /** Number of `acquire` calls without their `release`. */
  private[redisstate] def users(settings: ConnectionSettings): Int =
    synchronized(backends.get(settings).fold(0)(_.users))

  def host: String = Option(SparkEnv.get).fold("local")(_.blockManager.blockManagerId.host)
  def executorId: String = Option(SparkEnv.get).fold("local")(_.executorId)

  private def heartbeat(shared: Shared): ScheduledExecutorService = {
    val timer = Executors.newSingleThreadScheduledExecutor { work =>
      val thread = new Thread(work, "redis-state-heartbeat")
      thread.setDaemon(true)
      thread
    }
    timer.scheduleWithFixedDelay(
      () => beat(shared),
      HeartbeatMs,
      HeartbeatMs,
      TimeUnit.MILLISECONDS)
    timer
  }

  private def connect(settings: ConnectionSettings): RedisBackend =
    new RedisBackend(
      Transports.to(settings),
      settings.deadlineMs,
      Clock.System,
      () => Option(TaskContext.get()).exists(_.isInterrupted()),
      ServerChecks.check(settings.url.toString, settings.durability, settings.username.isEmpty, _),
      settings.durability,
      // The server has to answer well before its connection is taken for broken.
      settings.socketTimeoutMs / 2L,
      math.max(settings.deadlineMs, WaitsATry * settings.socketTimeoutMs)
    )

  /**
   * Beats for all servers; each server's thread beats every `HeartbeatMs`, and at once when an
   * instance registers.
   */
  def beat(): Unit = synchronized(backends.values.toSeq).foreach(beat(_))

  /** Beats for one server; another one that is down takes as long as its deadline. */
  private[redisstate] def beat(settings: ConnectionSettings): Unit =
    synchronized(backends.get(settings)).foreach(beat(_))

  /** Beats for one server, by its full URL. */
  def beat(url: String): Unit =
    synchronized(backends.keys.toSeq).filter(_.url.toString == url).foreach(beat)

  private def beat(shared: Shared): Unit = {
    val shown = newest(shared)
    attempt("report the instances")(report(shared, shown.filterNot(_.isLost)))
    shown.filterNot(_.isLost).flatMap(_.quota).distinct.foreach(quota =>
      attempt("measure the state")(quota.watch()))
    // A run that came later, here or elsewhere, may keep the state for good.
    val ephemeral = shown.filter(i => i.keepMs > 0 && !i.isLost)
    ephemeral.foreach(i => attempt(s"renew ${i.id}")(i.client.renew()))
    ephemeral.distinctBy(_.id.gen).foreach(i =>
      attempt(s"renew checkpoint ${i.id.gen}")(i.registry.renew(i.keepMs)))
    // It may have come in the meantime, and what it did to stay may be undone by now: by this beat, or by the one before, if it
    // was not shown yet.
    val gens = synchronized(shared.instances.toSeq).filter(_.keepMs > 0).map(_.id.gen).toSet
    val kept = newest(shared).filter(i => i.keepMs == 0 && gens(i.id.gen) && !i.isLost)
    kept.foreach(i => attempt(s"keep ${i.id}")(i.client.renew()))
    kept.distinctBy(_.id.gen).foreach(i =>
      attempt(s"keep checkpoint ${i.id.gen}")(i.registry.keep()))
  }

  /** Returns the newest instance of each partition. */
  private def newest(shared: Shared): Seq[Instance] =
    synchronized(shared.instances.toSeq).map(i => i.id -> i).toMap.values.toSeq

  private def report(shared: Shared, instances: Seq[Instance]): Unit = {
    val places = instances.map(_.place.get)
    val reports = instances.zip(places).map { case (instance, place) =>
      InstanceReport(
        instance.id,
        compact(render(members(instance))),
        compact(render(members(instance) ~ totals(instance) ~ recent(instance))),
        isNew = place eq Unreported)
    }
    val found = RunRegistry.reportInstances(shared.backend, reports, InstanceTtlMs)
    instances.zip(places).zip(found).foreach { case ((instance, before), isThere) =>
      // It may have registered again meanwhile.
      instance.place.compareAndSet(before, if (isThere) Reported else Lost)
    }
  }

  private def members(instance: Instance): JObject =
    ("host" -> host) ~ ("executor" -> executorId) ~ ("run" -> instance.runId)

  /** docs/format.md, section 9 */
  private def totals(instance: Instance): JObject = {
    val counted = instance.counters
    val filed = instance.client.filed
    ("opens" -> counted.opens.get) ~ ("openMs" -> Metrics.ms(counted.openNs)) ~
      ("loads" -> counted.cacheMisses.get) ~ ("loadMs" -> Metrics.ms(counted.loadNs)) ~
      ("commits" -> counted.commits.get) ~ ("commitMs" -> Metrics.ms(counted.commitNs)) ~
      ("rowsWritten" -> counted.rowsWritten.get) ~ ("rowsRemoved" -> counted.rowsRemoved.get) ~
      ("bytesSent" -> instance.client.bytesSent.get) ~ ("fileReads" -> filed.reads.get) ~
      ("fileReadMs" -> Metrics.ms(filed.readNs)) ~ ("fileBytes" -> filed.readBytes.get) ~
      ("movedBytes" -> filed.movedBytes.get) ~ ("failedMoves" -> filed.failedMoves.get) ~
      ("roomWaits" -> filed.roomWaits.get) ~ ("roomWaitMs" -> Metrics.ms(filed.roomWaitNs))
  }

  private def recent(instance: Instance): JObject = {
    val memory = Option(synchronized(budget)).map(b =>
      ("localBytes" -> b.usedBytes) ~ ("localMax" -> b.bytesMax)).getOrElse(JObject())
    val counted = instance.counters
    "recent" -> (instance.recent.report(
      RecentFigures.of(instance.client, counted),
      counted.version.get,
      instance.client.retries,
      System.nanoTime()) ~ memory)
  }

  private def attempt(what: String)(work: => Unit): Unit =
    try work
    catch {
      case NonFatal(e) =>
        logWarning(s"The heartbeat could not $what this time; no state depends on it", e)
    }
}
