package org.apache.spark.sql.redisstate.checkpoint

import org.apache.hadoop.conf.Configuration
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, Metrics, RegisteredStores}
import org.apache.spark.sql.redisstate.places.{FilesField, SegmentFolders}
import org.apache.spark.sql.redisstate.rows.{EncoderPool, FamilyLayout, StateRowValidator}

import org.redisstate.core.backend.{Clock, RedisBackend}
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.FencedException
import org.redisstate.core.ids.{PartitionId, RegisteredRun}
import org.redisstate.core.protocol._
import org.redisstate.core.protocol.names.GenClaims
import org.redisstate.core.store.PartitionVersions
import org.redisstate.core.store.resources.{FileReads, StoreCounters}

/**
 * Settings that `init` gave a provider.
 *
 * @param shareOf share of the partition, given its part of `redisMemory`
 */
private[redisstate] final case class StorePlan(
    id: StateStoreId,
    storeConf: StateStoreConf,
    hadoopConf: Configuration,
    runId: String,
    conf: RedisStateConf,
    layout: FamilyLayout,
    encoders: EncoderPool,
    shareOf: Long => Long)

/** Connection of a provider to the state of its partition, made by the first open. */
private[redisstate] final case class StoreLink(
    instance: ExecutorRegistry.Instance,
    store: PartitionVersions,
    metrics: Metrics,
    entry: QueryEntry,
    history: Option[HistoryUpkeep])

/**
 * Steps by which a partition joins its query. `connect` resolves the gen of the checkpoint; `run`,
 * before the first write, confirms that gen and registers the run in Redis. Thread-safe.
 *
 * @param gen that `connect` resolved
 * @param mine the proposed gen where no marker existed then; else None
 * @param share of the partition by `redisMemory`; 0 without a bound
 */
private[redisstate] final class QueryEntry private (
    plan: StorePlan,
    marker: MarkerFile,
    identity: CheckpointIdentity,
    gen: String,
    mine: Option[String],
    origin: QueryEntry.Origin,
    instance: ExecutorRegistry.Instance,
    share: () => Long,
    folders: SegmentFolders)
    extends Logging {
  private val id = plan.id
  @GuardedBy("this") @volatile private var registered: Option[RegisteredRun] = None
  @volatile private var misled = false

  /**
   * Returns whether the checkpoint has another gen by now, so that the provider has to connect
   * again.
   */
  def isMisled: Boolean = misled

  /** Returns whether the run writes the partition. */
  def hasEntered: Boolean = registered.nonEmpty

  /**
   * Returns the registered run; registers it at the first call.
   *
   * @throws FencedException if the checkpoint has another gen by now
   */
  def run(): RegisteredRun = registered.getOrElse(synchronized {
    registered.getOrElse {
      confirm()
      val run = enter()
      registered = Some(run)
      run
    }
  })

  /**
   * Confirms the gen before the first write of this run: nothing was written under another gen, so
   * the next attempt may open the right one.
   */
  private def confirm(): Unit =
    try identity.confirm(gen, mine, plan.conf.adoptMovedCheckpoint)
    catch {
      case e: FencedException =>
        misled = true
        throw e
    }

  /** Registers the run, if it is not yet, and lists the operator and the checkpoint for readers. */
  private def enter(): RegisteredRun = {
    val registry = instance.registry
    instance.quota.foreach(_.check(s"write $id"))
    // Spark's state reader finds the partitions of an operator by their folders.
    val folder = id.storeCheckpointLocation()
    CheckpointFileManager.create(folder, plan.hadoopConf).mkdirs(folder)
    val found = registry.entering(plan.runId, id.operatorId, id.storeName)
    found.movedTo.foreach { to =>
      misled = true
      throw new FencedException(
        s"write $id: the number of partitions of its checkpoint has changed since (gen $to), and this task opened the previous " +
          "partitions. Either its run is over, or its file system still shows older marker files. Nothing was written. When Spark runs " +
          "the task again, the task reads the files again.")
    }
    val run = found.run.getOrElse(
      registry.register(
        plan.runId,
        byDriver = false,
        above = 0,
        Map(
          "path" -> marker.pathHash,
          "id" -> origin.queryId,
          "created" -> System.currentTimeMillis().toString)))
    registry.noteMarker()
    recordFiles(registry, found.files.map(FilesField.parsed(gen, _)))
    if (id.partitionId == StateStore.PARTITION_ID_TO_CHECK_SCHEMA) {
      val now = registry.nowMs
      val created = registry.field("created").flatMap(_.toLongOption).getOrElse(now)
      val listing = ("path" -> marker.pathHash) ~ ("id" -> origin.queryId) ~
        ("name" -> registry.field("name").getOrElse("")) ~ ("created" -> created) ~ ("seen" -> now)
      registry.confirm(compact(render(listing)), instance.keepMs)
    }
    OperatorListing(registry, id, plan.layout.family, plan.hadoopConf).put(origin.partitions)
    instance.client.bindTo(share())
    // An earlier run may have kept its state otherwise; its instance counts no more.
    instance.client.renew()
    logInfo(s"Run ${run.id} (epoch ${run.epoch}) writes $id")
    run
  }

  /**
   * Records where files of the checkpoint are, before the first one is announced. Without
   * `history=files` nothing is moved any more; what is in files stays there, unless it moved with
   * the checkpoint.
   */
  private def recordFiles(registry: RunRegistry, known: Option[FilesField]): Unit = {
    val conf = plan.conf
    val wanted =
      if (conf.needsFiles && instance.keepMs == 0)
        Some(
          FilesField(folders.address, conf.placesGraceMs, conf.movesHistory, conf.placesDelete))
      else
        known.map { field =>
          field.copy(folder = folders.addressOf(field, usedFiles(registry)), moves = false)
        }
    if (conf.needsFiles) known.foreach(folders.checkMove(_, usedFiles(registry)))
    if (wanted != known) wanted.foreach(field => registry.putFiles(field.text))
  }

  /** Files of the first partition that has any, this one before the others. */
  private def usedFiles(registry: RunRegistry): Seq[String] = {
    def others = for {
      store <- RegisteredStores.of(gen, registry.fields()).iterator
      number <- Iterator.range(0, store.partitions)
    } yield PartitionId(plan.conf.keyPrefix, gen, store.operator, number, store.name)
    val own = PartitionId(plan.conf.keyPrefix, gen, id.operatorId, id.partitionId, id.storeName)
    (Iterator(own) ++ others).map(registry.usedFiles).find(_.nonEmpty).getOrElse(Nil)
  }
}

private[redisstate] object QueryEntry {

  /** An ephemeral checkpoint outlives its last heartbeat by an hour. */
  val EphemeralKeepMs: Long = 3600000L

  private final case class Origin(queryId: String, partitions: Int)

  /**
   * Connects a partition to the gen that its checkpoint has, or that this run proposes.
   *
   * @param version that the caller opens; above 0 a marker has to exist
   * @param clock for the wait for a marker
   */
  def connect(plan: StorePlan, version: Long, clock: Clock): StoreLink = {
    val conf = plan.conf
    val markerFile = new MarkerFile(plan.id.checkpointRootLocation, plan.hadoopConf, clock)
    val marker = markerFile.open(version, conf.adoptMovedCheckpoint)
    val backend = ExecutorRegistry.acquire(conf.connection)
    try connect(plan, backend, markerFile, marker)
    catch {
      case e: Throwable =>
        ExecutorRegistry.release(conf.connection)
        throw e
    }
  }

  private def connect(
      plan: StorePlan,
      backend: RedisBackend,
      markerFile: MarkerFile,
      marker: Option[Marker]): StoreLink = {
    val conf = plan.conf
    val identity = new CheckpointIdentity(markerFile, new GenClaims(backend, conf.keyPrefix))
    val own = CheckpointIdentity.genOf(plan.runId)
    val gen = marker.fold(identity.proposed(own))(_.gen)
    val registry = new RunRegistry(backend, conf.keyPrefix, gen)
    val disk = conf.localDiskBytes.map(ExecutorRegistry.localDisk(_, conf.localDiskFolder))
    val folders =
      SegmentFolders.of(plan.id.checkpointRootLocation, plan.hadoopConf, conf, backend, gen, disk)
    if (conf.needsFiles) FileReads.resize(conf.readParallel)
    val client = clientOf(plan, backend, gen, registry, folders)
    val counters = new StoreCounters
    val quota = Option.when(conf.quota.isSet)(
      ExecutorRegistry.quota(conf.connection, backend, conf.keyPrefix, gen, conf.quota))
    val instance =
      new ExecutorRegistry.Instance(client, registry, plan.runId, keepMs(plan), counters, quota)
    val mine = Option.when(marker.isEmpty)(own)
    val origin = taskOrigin()
    val planned = new PlannedStores(plan.id.checkpointRootLocation, plan.hadoopConf)
    def share = shareOf(plan, gen, registry, planned, origin)
    val entry =
      new QueryEntry(plan, markerFile, identity, gen, mine, origin, instance, () => share, folders)
    val store = new PartitionVersions(
      client,
      plan.runId,
      () => entry.run(),
      plan.layout.family,
      new StateRowValidator(
        plan.layout.keySchema,
        plan.layout.valueSchema,
        plan.layout.spec.isInstanceOf[NoPrefixKeyStateEncoderSpec],
        plan.storeConf),
      ExecutorRegistry.memoryBudget(conf.localMemoryBytes),
      // Only who writes serves the partition: Spark's state reader opens it too, and a late task of an ended run is fenced.
      () => ExecutorRegistry.register(conf.connection, instance),
      counters,
      ttlMs = conf.stateTtlMs(plan.id.operatorId),
      previewEveryMs = conf.publishEveryMs
    )
    val history = Option.when((conf.needsFiles || conf.placesDelete) && instance.keepMs == 0) {
      val checks = new FolderChecks(plan.id.checkpointRootLocation, plan.hadoopConf, gen, folders)
      def recorded = {
        var found = Option.empty[FilesField]
        registry.whileAnswering { found = registry.files.map(FilesField.parsed(gen, _)) }: Unit
        found
      }
      new HistoryUpkeep(client, conf, checks, () => recorded, () => share)
    }
    StoreLink(instance, store, new Metrics(store), entry, history)
  }

  private def clientOf(
      plan: StorePlan,
      backend: RedisBackend,
      gen: String,
      registry: RunRegistry,
      folders: SegmentFolders): PartitionClient = {
    val id = plan.id
    val format =
      if (plan.storeConf.enableStateStoreCheckpointIds) CheckpointFormat.V2
      else CheckpointFormat.V1
    new PartitionClient(
      backend,
      PartitionId(plan.conf.keyPrefix, gen, id.operatorId, id.partitionId, id.storeName),
      ProtocolSettings(
        plan.conf.versionsToRetain,
        keepMs(plan),
        format,
        plan.conf.signer(),
        isBounded = plan.conf.redisMemory.nonEmpty && keepMs(plan) == 0),
      registry,
      Some(new CommittedBatches(id.checkpointRootLocation, plan.hadoopConf)),
      Some(folders)
    )
  }

  /** Returns the share of a partition of the query; 0 without a bound. */
  private def shareOf(
      plan: StorePlan,
      gen: String,
      registry: RunRegistry,
      planned: PlannedStores,
      origin: Origin): Long =
    plan.conf.redisMemory.filter(_ => keepMs(plan) == 0).fold(0L) { total =>
      val listed = RegisteredStores.of(gen, registry.fields())
      plan.shareOf(planned.share(total, plan.id, listed, origin.partitions))
    }

  private def keepMs(plan: StorePlan): Long =
    if (plan.conf.ephemeral || MarkerFile.isTemporary(plan.id.checkpointRootLocation))
      EphemeralKeepMs
    else 0L

  /**
   * Returns the origin of the task that opens: a Python worker's requests are served by a thread
   * without one.
   */
  private def taskOrigin(): Origin = Option(TaskContext.get()).fold(Origin("", 0))(context =>
    Origin(
      Option(context.getLocalProperty(StreamExecution.QUERY_ID_KEY)).getOrElse(""),
      context.numPartitions()))
}
