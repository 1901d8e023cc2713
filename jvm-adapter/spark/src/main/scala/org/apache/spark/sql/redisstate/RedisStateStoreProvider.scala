package org.apache.spark.sql.redisstate

import java.nio.file.Path

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkContext, SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.checkpoint.{BatchTimes, QueryEntry, StoreLink, StorePlan}
import org.apache.spark.sql.redisstate.conf.{ExpiringOperators, RedisStateConf}
import org.apache.spark.sql.redisstate.copies.WaysOn
import org.apache.spark.sql.redisstate.errors.{ErrorCounters, StoreErrors}
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, Metrics}
import org.apache.spark.sql.redisstate.rows.{CodecSet, EncoderPool, FamilyLayout, RowEncoding}
import org.apache.spark.sql.redisstate.stores.{
  CommitReport,
  FineGrainedReplay,
  MaintenanceShim,
  MovesState,
  ProviderShim,
  RedisFill,
  RedisReadStateStore,
  RedisReads,
  RedisStateStore,
  SharedStore,
  SnapshotReportShim,
  StoreHost,
  TaskStores
}
import org.apache.spark.sql.redisstate.stores.joins.JoinStore
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.Utils

import org.redisstate.core.backend.Clock
import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.{QuotaException, RedisStateException, UnavailableException}
import org.redisstate.core.ids.Pin
import org.redisstate.core.store.{OpenVersion, PartitionVersions, WriteSession}

/**
 * State store provider of Structured Streaming that keeps state in Redis. Set it as
 * `spark.sql.streaming.stateStore.providerClass`; the options are in docs/configuration.md, the
 * protocol in docs/format.md.
 */
class RedisStateStoreProvider
    extends SparkVersionChecked
    with MaintenanceShim
    with SnapshotReportShim
    with ProviderShim
    with FineGrainedReplay
    with MovesState
    with Logging {
  import RedisStateStoreProvider._

  @volatile private var id: StateStoreId = _
  @volatile private var hasFamilies = false
  @volatile private var knownAsRun = false
  @volatile private var plan: StorePlan = _
  @GuardedBy("this") @volatile private var link: Option[StoreLink] = None

  /** A task may still be opening a version: it must not connect again. */
  @GuardedBy("this") @volatile private var closed = false

  /** Uses no network and no file: Spark holds a lock of the whole executor. */
  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    id = stateStoreId
    hasFamilies = useColumnFamilies
    val conf =
      try RedisStateConf(storeConfs.sqlConfs, storeConfs.minVersionsToRetain)
      catch { case e: RedisStateException => throw StoreErrors.cannotLoad(id, e) }
    plan = StorePlan(
      id,
      storeConfs,
      new Configuration(hadoopConf),
      hadoopConf.get(StreamExecution.RUN_ID_KEY),
      conf,
      FamilyLayout(
        0,
        StateStore.DEFAULT_COL_FAMILY_NAME,
        valueSchema,
        keyStateEncoderSpec,
        useMultipleValuesPerKey,
        internal = false,
        RowEncoding.of(storeConfs, stateSchemaProvider)
      ),
      new EncoderPool(useColumnFamilies),
      shareOf
    )
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val opened = if (loadEmpty) openEmpty(version) else open(version, stateStoreCkptId)
    writeStore(opened, forceSnapshotOnCommit, stateStoreCkptId)
  }

  override private[redisstate] def getStoreToFill(
      version: Long,
      uid: Option[String],
      timeS: Option[Long]): RedisFill =
    new RedisFill(id, openEmpty(version).fill(uid.map(ours), timeS, localFolder), codecs)

  override private[redisstate] def getStoreToScan(
      version: Long,
      uid: Option[String]): RedisReadStateStore = {
    val opened = opening(version, version)(_.openOnce(version, uid.map(ours)))
    new RedisReadStateStore(id, opened, codecs, failed, groupsPrefixes = false)
  }

  /** Spark's state reader makes one map of the rows of a prefix that follow each other. */
  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore =
    noted(
      new RedisReadStateStore(
        id,
        open(version, stateStoreCkptId),
        codecs,
        failed,
        groupsPrefixes = true))

  /** Registers a store whose rows may be in files, for the input of its operator. */
  private def noted[A <: RedisReads](store: A): A = {
    if (plan.conf.needsFiles) TaskStores.note(id, store)
    store
  }

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = {
    require(
      readStore.version == version && readStore.id == id,
      s"$readStore cannot be upgraded to write version $version of $id")
    readStore match {
      case ours: RedisReadStateStore if link.exists(_.store.owns(ours.opened)) =>
        writeStore(ours.opened, forceSnapshotOnCommit, stateStoreCkptId)
      case ours: RedisReadStateStore =>
        val opened = open(version, stateStoreCkptId)
        if (opened.pin != ours.opened.pin) {
          throw StoreErrors.cannotLoad(
            id,
            new UnavailableException(
              s"open version $version of $id: the version that this task read was replaced meanwhile. Spark runs the task again."))
        }
        writeStore(opened, forceSnapshotOnCommit, stateStoreCkptId)
      case _ => getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty = false)
    }
  }

  override protected def addSnapshot(): Unit = maintain { l =>
    if (l.store.snapshotIfDue()) reportSnapshot(plan.runId, l.store.snapshotVersion)
  }: Unit

  override protected def removeExpired(): Unit = {
    val isDone = maintain { l =>
      val report = l.store.retain()
      if (report.dropped > 0) {
        logInfo(
          s"Retention of $id dropped ${report.dropped} segments (${report.droppedBytes} bytes), floor ${report.floor}")
      }
    }
    if (isDone)
      maintained(link.filter(_.entry.hasEntered).flatMap(_.history).foreach(_.run())): Unit
  }

  /**
   * Does maintenance, unless the server is silent: Spark has few threads for the maintenance of all
   * queries.
   *
   * @return whether it was done
   */
  private def maintain(work: StoreLink => Unit): Boolean =
    link.exists(l => maintained(l.instance.client.whileAnswering(work(l))).contains(true))

  /** Spark would unload a provider whose maintenance fails; no state depends on it, and the next one may succeed. */
  private def maintained[A](work: => A): Option[A] =
    try Some(work)
    catch {
      case NonFatal(e) =>
        logWarning(s"Maintenance of $id was not possible this time", e)
        None
    }

  override def close(): Unit = synchronized {
    closed = true
    link.foreach(disconnect)
    link = None
  }

  private def disconnect(linked: StoreLink): Unit = {
    linked.store.close()
    ExecutorRegistry.unregister(plan.conf.connection, linked.instance)
    ExecutorRegistry.release(plan.conf.connection)
  }

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = Metrics.all

  override def toString: String = s"$Name[$id]"

  private def codecs: CodecSet = new CodecSet(plan.layout, plan.encoders)

  override protected def openVersion(version: Long, checkpointId: Option[String]): OpenVersion =
    open(version, checkpointId)

  override protected def codecsOf(opened: OpenVersion): CodecSet = {
    val known = codecs
    known.learn(opened.families)
    known
  }

  private def writeStore(
      opened: OpenVersion,
      forceSnapshot: Boolean,
      asked: Option[String]): StateStore = {
    val linked = link.filter(_.store.owns(opened)).getOrElse(
      throw StoreErrors.cannotLoad(id, StoreErrors.unloaded(id, opened.pin.version)))
    try {
      ExpiringOperators.check(id, hasFamilies, stateTtlMs)
      if (stateTtlMs.isEmpty && opened.families.exists(_.ttl))
        ExpiringOperators.checkRewrite(id, isOfBatch)
    } catch { case e: RedisStateException => throw StoreErrors.cannotLoad(id, e) }
    checkQuota(linked, opened.pin.version)
    val session =
      try if (isTimedJoin) opened.writeOfJoin(batchS(opened.pin.version)) else opened.write()
      catch {
        case e: RedisStateException =>
          failed(e)
          throw StoreErrors.cannotLoad(id, e, WaysOn.after(e, id, plan.conf, plan.hadoopConf))
      }
    noted(newStore(session, codecs, new Host(linked, forceSnapshot, asked)))
  }

  /**
   * Checks the quota of a run that writes the partition already; before the first write,
   * `QueryEntry` checks.
   */
  private def checkQuota(linked: StoreLink, version: Long): Unit =
    if (linked.instance.isShown) {
      try linked.instance.quota.foreach(_.check(s"write on version $version of $id"))
      catch { case e: QuotaException => throw StoreErrors.cannotLoad(id, e) }
    }

  /** Makes the store that `getStore` returns. */
  private[redisstate] def newStore(
      session: WriteSession,
      codecs: CodecSet,
      host: StoreHost): RedisStateStore =
    if (isTimedJoin) new JoinStore(id, session, codecs, host)
    else if (SharedStore.isNeeded) new SharedStore(id, session, codecs, host)
    else new RedisStateStore(id, session, codecs, host)

  /** True if rows expire that belong to those of other stores. */
  private def isTimedJoin: Boolean =
    ExpiringOperators.isJoin(id) && stateTtlMs.nonEmpty

  private def stateTtlMs: Option[Long] = plan.conf.stateTtlMs(id.operatorId)

  /** Time of the batch that loads a version. */
  private def batchS(version: Long): Long =
    BatchTimes.of(id.checkpointRootLocation, plan.runId, version, plan.hadoopConf)

  /** Clock for the wait for a marker. */
  private[redisstate] def clock: Clock = Clock.System

  /** Returns the share of the partition, given its part of `redisMemory`. */
  private[redisstate] def shareOf(part: Long): Long = part

  private final class Host(linked: StoreLink, forceSnapshot: Boolean, asked: Option[String])
      extends StoreHost {
    override def baseId(pin: Pin): String = asked.filter(ours(_) == pin.uid).getOrElse(pin.uid)

    override def committed(pin: Pin): Unit = {
      if (!linked.instance.isShown) ExecutorRegistry.register(plan.conf.connection, linked.instance)
      if (forceSnapshot) snapshotNow(pin)
      CommitReport.send(pin.version, id, plan.storeConf, plan.hadoopConf)
    }

    /** The version is committed whether this succeeds or not. */
    private def snapshotNow(pin: Pin): Unit =
      try {
        if (linked.store.addSnapshot(pin)) reportSnapshot(plan.runId, pin.version)
        else linked.store.requestSnapshot()
      } catch {
        case e: RedisStateException =>
          linked.store.requestSnapshot()
          logWarning(s"The next maintenance of $id adds the snapshot of version ${pin.version}", e)
      }

    override def failed(e: RedisStateException): Unit = RedisStateStoreProvider.this.failed(e)

    override def withIds: Boolean = plan.storeConf.enableStateStoreCheckpointIds

    override def metrics(session: WriteSession): StateStoreMetrics = {
      val localBytes = session.localBytes
      val custom = linked.metrics.sinceLast() ++ Map(
        Metrics.localBytes -> localBytes,
        Metrics.internalKeys -> session.numInternalKeys,
        Metrics.forceSnapshot -> (if (forceSnapshot) 1L else 0L))
      metricsOf(session.numKeys, localBytes, custom, linked.store.snapshotVersion)
    }
  }

  /** @param uid Spark's unique id of the version; None in checkpoint format 1 and right after it */
  private def open(version: Long, uid: Option[String]): OpenVersion =
    opening(version, version)(_.open(version, uid.map(ours), stateTtlMs.nonEmpty && isOfBatch))

  /**
   * Returns whether a batch of the query uses this provider. Spark's state reader makes up a run id
   * of its own, which nobody registers. A batch may have another job group, as in Spark Connect.
   */
  private def isOfBatch: Boolean = isInJobOfRun || isRegistered

  private def isInJobOfRun: Boolean = Option(TaskContext.get()).exists { task =>
    task.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID) == plan.runId
  }

  private def isRegistered: Boolean = knownAsRun || link.exists { linked =>
    knownAsRun = linked.instance.registry.lookup(plan.runId).nonEmpty
    knownAsRun
  }

  /**
   * Returns an id as this provider writes it: moved state still has Spark's spelling in its commit
   * log.
   */
  private def ours(uid: String): String = uid.replace("-", "")

  /**
   * Opens a version without its rows; nothing that existed before is needed, not even the marker of
   * the checkpoint.
   */
  private def openEmpty(version: Long): OpenVersion =
    opening(version, needed = 0)(_.openEmpty(version))

  private def opening(version: Long, needed: Long)(
      how: PartitionVersions => OpenVersion): OpenVersion = {
    if (version < 0) throw StoreErrors.negativeVersion(version)
    try how(connected(needed).store)
    catch {
      case e: RedisStateException =>
        failed(e)
        throw StoreErrors.cannotLoad(id, e, WaysOn.after(e, id, plan.conf, plan.hadoopConf))
    }
  }

  /** Counts what ends a task of a streaming query for good, for who watches; in the background. */
  private def failed(e: RedisStateException): Unit =
    for {
      error <- ErrorCounters.of(e) if ErrorCounters.isOfBatch
      linked <- link
    } linked.instance.client.later {
      try linked.instance.registry.count(error, id.operatorId, id.storeName)
      catch { case NonFatal(_) => logInfo(s"An error of $id was not counted: ${e.getMessage}") }
    }: Unit

  private def connected(version: Long): StoreLink = usable.getOrElse(synchronized {
    usable.getOrElse {
      if (closed) throw StoreErrors.unloaded(id, version)
      val made = QueryEntry.connect(plan, version, clock)
      link.foreach(disconnect)
      link = Some(made)
      made
    }
  })

  /** A link whose checkpoint has another gen by now was made before its marker was there. */
  private def usable: Option[StoreLink] = link.filterNot(_.entry.isMisled)
}

private[redisstate] object RedisStateStoreProvider {
  private val Name = "RedisStateStoreProvider"

  /** A folder of Spark's on the local disk. */
  private def localFolder: Option[Path] =
    Option(SparkEnv.get).map(env => Path.of(Utils.getLocalDir(env.conf)))
}
