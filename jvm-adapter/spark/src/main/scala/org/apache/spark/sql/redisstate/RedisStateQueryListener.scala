package org.apache.spark.sql.redisstate

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.DefaultFormats

import org.apache.spark.SPARK_VERSION
import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.redisstate.batches.BatchFigures
import org.apache.spark.sql.redisstate.checkpoint.{CheckpointIdentity, MarkerFile, QueryLogs}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.copies.StateCopier
import org.apache.spark.sql.redisstate.executor.ExecutorRegistry
import org.apache.spark.sql.redisstate.move.Adoption
import org.apache.spark.sql.redisstate.move.rescale.RescaleAtStart
import org.apache.spark.sql.redisstate.query.{
  BatchConfirmation,
  IntervalKeeper,
  KeyTypes,
  QueryGauges,
  QuerySession,
  RunPulse,
  StartCheck,
  StartRefused,
  StatefulPlan
}
import org.apache.spark.sql.streaming.{StreamingQueryListener, StreamingQueryProgress}
import org.apache.spark.sql.streaming.StreamingQueryListener._

import org.redisstate.core.backend.RedisBackend
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.protocol.RunRegistry
import org.redisstate.core.protocol.names.GenClaims

/**
 * Registers each run of a query before its first task exists, so that the run may take its
 * partitions back to an older version and a zombie may not; and starts copies (backups) of its
 * state, if `copyEveryBatches` is set. Set it in `spark.sql.streaming.streamingQueryListeners`;
 * Spark calls `onQueryStarted` on the query's own thread.
 */
class RedisStateQueryListener extends StreamingQueryListener with Logging {
  SparkVersion.check(SPARK_VERSION)
  private val copiers = new ConcurrentHashMap[UUID, StateCopier]
  private val keepers = new ConcurrentHashMap[UUID, IntervalKeeper]
  private val confirmations = new ConcurrentHashMap[UUID, BatchConfirmation]

  /** Runs that began with a change of the number of partitions, until it is decided. */
  private val undecided = new ConcurrentHashMap[UUID, () => Boolean]

  /** Ends a query whose state cannot work here, before its first task. */
  override def onQueryStarted(event: QueryStartedEvent): Unit =
    try executionOf(event.id).foreach(started(_, event))
    catch {
      case e: RedisStateException =>
        logWarning(s"Query ${event.id} was not registered: ${e.getMessage}")
      case _: InterruptedException =>
        logInfo(s"The run ${event.runId} of query ${event.id} was stopped while it started")
      case NonFatal(e) =>
        logError(
          s"The run ${event.runId} of query ${event.id} could not be registered. It runs, but " +
            "cannot restart from an older batch until this is fixed.",
          e)
    } finally {
      // Spark takes a listener that was interrupted out of the session. A query that was stopped
      // looks at its state, and ends.
      Thread.interrupted(): Unit
    }

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    showFigures(event.progress)
    val batch = event.progress.batchId
    Option(confirmations.get(event.progress.runId)).foreach(_.batchDone(batch))
    Option(copiers.get(event.progress.runId)).foreach(_.batchDone(batch))
    Option(keepers.get(event.progress.runId)).foreach(_.batchDone(batch))
    decide(event.progress.runId)
  }

  /** Decides a planned change of partitions; a failure is retried with the next batch. */
  private def decide(run: UUID): Unit =
    try Option(undecided.get(run)).foreach(isDecided => if (isDecided()) undecided.remove(run))
    catch {
      case NonFatal(e) =>
        logWarning(
          s"The change of the number of partitions by run $run is not recorded in a file yet",
          e)
    }

  /**
   * Listeners behind this one find the figures in the progress. What is for show alone stops
   * nothing else.
   */
  private def showFigures(progress: StreamingQueryProgress): Unit =
    try {
      BatchFigures.addTo(progress)
      QueryGauges.show(progress)
    } catch {
      case NonFatal(e) =>
        logWarning(
          s"The figures of batch ${progress.batchId} of query ${progress.id} are not shown",
          e)
    }

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit = {
    RunPulse.stop(event.runId)
    undecided.remove(event.runId)
    QueryGauges.remove(event.runId)
    Option(confirmations.remove(event.runId)).foreach(_.finish())
    Option(copiers.remove(event.runId)).foreach(_.finish())
    Option(keepers.remove(event.runId)).foreach(_.finish())
  }

  private def executionOf(queryId: UUID): Option[StreamExecution] =
    SparkSession.getActiveSession
      .orElse(SparkSession.getDefaultSession)
      .flatMap(session => Option(session.sharedState.activeStreamingQueries.get(queryId)))

  private def started(query: StreamExecution, event: QueryStartedEvent): Unit = {
    val session = QuerySession.of(query)
    nameProvider(query, session, event)
    val sqlConf = session.sessionState.conf
    if (sqlConf.stateStoreProviderClass == classOf[RedisStateStoreProvider].getName) {
      val extensions = session.conf.getOption(StaticSQLConf.SPARK_SESSION_EXTENSIONS.key)
      TransformWithStateAdvice.of(query.analyzedPlan, extensions).foreach(logError(_))
      val hadoopConf = session.sessionState.newHadoopConf()
      val checkpoint = new Path(query.resolvedCheckpointRoot)
      val stateful = StatefulPlan.is(query.analyzedPlan)
      val foreign =
        pinnedProvider(checkpoint, hadoopConf).filter(_ != sqlConf.stateStoreProviderClass)
      val adopts = foreign.nonEmpty && stateful && StartRefused.isPossible &&
        RedisStateConf(sqlConf.getAllConfs, sqlConf.minBatchesToRetain).adopt
      if (adopts) orRefused(query, event)(new Adoption(session, checkpoint, hadoopConf).run())
      foreign.filterNot(_ => adopts) match {
        case Some(other) =>
          logWarning(
            s"Query ${event.id} does NOT keep its state in Redis: its checkpoint $checkpoint was made with the " +
              s"provider $other, and Spark stays with that provider. To move its state to Redis, start it once with " +
              s"${RedisStateConf.Prefix}adopt=true, or use `redis-state migrate`.")
        case None if stateful && StartRefused.isPossible =>
          orRefused(query, event) {
            new RescaleAtStart(session, checkpoint, hadoopConf).run()
            register(query, event, sqlConf, checkpoint, hadoopConf, stateful)
          }
        case None => register(query, event, sqlConf, checkpoint, hadoopConf, stateful)
      }
    }
  }

  /**
   * Sets the provider for this query alone, if the option `realTime` asks for it. Spark posts the
   * start of a query before it plans a batch, and before it sets RocksDB's provider for real-time
   * mode, which it does only where the query's session names none
   * (`MicroBatchExecution.setSparkSessionConfigsForRealTimeMode`).
   */
  private def nameProvider(
      query: StreamExecution,
      session: SparkSession,
      event: QueryStartedEvent): Unit = {
    val sqlConf = session.sessionState.conf
    val isNamed = sqlConf.contains(SQLConf.STATE_STORE_PROVIDER_CLASS.key)
    if (!isNamed && sqlConf.contains(s"${RedisStateConf.Prefix}realTime")) {
      // With a wrong option the state would go to Spark's own provider, and only the log would tell.
      def parsed = RedisStateConf(sqlConf.getAllConfs, sqlConf.minBatchesToRetain)
      val conf = if (StartRefused.isPossible) orRefused(query, event)(parsed) else parsed
      if (conf.realTime && (session eq query.sparkSession)) {
        logError(
          "The option realTime has no effect: this version of Spark does not show the session of " +
            s"query ${query.id}, whose state goes to Spark's own provider.")
      } else if (conf.realTime) {
        session.conf.set(
          SQLConf.STATE_STORE_PROVIDER_CLASS.key,
          classOf[RedisStateStoreProvider].getName)
      }
    }
  }

  private def orRefused[A](query: StreamExecution, event: QueryStartedEvent)(work: => A): A =
    try work
    catch {
      case e: RedisStateException =>
        tellThoseBehind(query, event)
        StartRefused.refuse(e)
    }

  /**
   * Listeners behind this one, Spark's page of queries among them, would hear of the end of a query
   * that they do not know.
   */
  private def tellThoseBehind(query: StreamExecution, event: QueryStartedEvent): Unit =
    query.sparkSession.streams.listListeners().dropWhile(_ ne this).drop(1).foreach { other =>
      try other.onQueryStarted(event)
      catch {
        case NonFatal(e) => logWarning(s"Listener ${other.getClass.getName} failed", e)
      }
    }

  /** Decides on the checkpoint's gen if it has none, and begins to copy its state if that is asked for. */
  private def register(
      query: StreamExecution,
      event: QueryStartedEvent,
      sqlConf: SQLConf,
      checkpoint: Path,
      hadoopConf: Configuration,
      stateful: Boolean): Unit = {
    val conf = RedisStateConf(sqlConf.getAllConfs, sqlConf.minBatchesToRetain)
    if (stateful && StartRefused.isPossible) {
      KeyTypes.check(query.analyzedPlan)
      StartCheck.run(conf)
    }
    val markerFile = new MarkerFile(new Path(checkpoint, "state").toString, hadoopConf)
    val backend = ExecutorRegistry.acquire(conf.connection)
    val found =
      try {
        val identity = new CheckpointIdentity(markerFile, new GenClaims(backend, conf.keyPrefix))
        val version = nextBatch(checkpoint, hadoopConf)
        val gen =
          identity.begin(event.runId.toString, version, stateful, conf.adoptMovedCheckpoint)
        gen.foreach { gen =>
          registerRun(event, gen, markerFile.pathHash, backend, conf)
          if (version == 0) tellOfOlder(gen, markerFile.pathHash, checkpoint, backend, conf)
        }
        gen
      } finally ExecutorRegistry.release(conf.connection)
    markerFile.undecided()
      .foreach(change => undecided.put(event.runId, () => markerFile.decide(change.now)))
    found.foreach { gen =>
      RunPulse.start(event.runId, gen, conf, () => query.isActive)
      if (stateful) {
        val isBusy = () => query.status.isTriggerActive && query.status.isDataAvailable
        confirmations.put(
          event.runId,
          new BatchConfirmation(event.runId, gen, checkpoint, hadoopConf, conf, isBusy))
      }
      if (!conf.ephemeral && !MarkerFile.isTemporary(new Path(checkpoint, "state").toString)) {
        if (stateful) keep(event, gen, checkpoint, hadoopConf, conf)
        copy(event, gen, sqlConf, checkpoint, hadoopConf, conf)
      }
    }
  }

  private def registerRun(
      event: QueryStartedEvent,
      gen: String,
      pathHash: String,
      backend: RedisBackend,
      conf: RedisStateConf): Unit = {
    val fields = Map(
      "path" -> pathHash,
      "id" -> event.id.toString,
      "name" -> Option(event.name).getOrElse(""),
      "created" -> System.currentTimeMillis().toString,
      "copies" -> conf.copyEveryBatches.toString,
      "publishEvery" -> conf.publishEveryMs.getOrElse(0L).toString
    )
    val run = new RunRegistry(backend, conf.keyPrefix, gen)
      .register(event.runId.toString, byDriver = true, above = 0, fields)
    logInfo(s"Registered run ${run.id} of query ${event.id} with epoch ${run.epoch}")
  }

  /**
   * Logs that the folder was deleted and created again, so that its older state still takes room.
   */
  private def tellOfOlder(
      gen: String,
      pathHash: String,
      checkpoint: Path,
      backend: RedisBackend,
      conf: RedisStateConf): Unit =
    new RunRegistry(backend, conf.keyPrefix, gen).othersOfFolder(pathHash).foreach { older =>
      logWarning(
        s"Redis still holds the state of an older checkpoint of the folder $checkpoint, which " +
          "was deleted and created again. If it is no longer needed, free its memory: redis-state purge " +
          s"--gen $older")
    }

  private def keep(
      event: QueryStartedEvent,
      gen: String,
      checkpoint: Path,
      hadoopConf: Configuration,
      conf: RedisStateConf): Unit =
    conf.keepEveryMs.foreach { everyMs =>
      keepers.put(
        event.runId,
        new IntervalKeeper(event.runId, gen, checkpoint, hadoopConf, conf, everyMs))
    }

  private def copy(
      event: QueryStartedEvent,
      gen: String,
      sqlConf: SQLConf,
      checkpoint: Path,
      hadoopConf: Configuration,
      conf: RedisStateConf): Unit =
    if (conf.copyEveryBatches > 0) {
      if (conf.copyEveryBatches * 2 > sqlConf.minBatchesToRetain) {
        logWarning(
          s"Query ${event.id}: copyEveryBatches=${conf.copyEveryBatches} is above half of " +
            s"${SQLConf.MIN_BATCHES_TO_RETAIN.key}=${sqlConf.minBatchesToRetain}: Spark may have dropped the log entries that " +
            "a restart from a copy needs. Raise the latter.")
      }
      copiers.put(event.runId, new StateCopier(event.runId, gen, checkpoint, hadoopConf, conf))
    }

  /** Returns the provider that the newest offset log of a checkpoint names, if there is one. */
  private def pinnedProvider(checkpoint: Path, hadoopConf: Configuration): Option[String] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    Try {
      val newest = QueryLogs.batches(checkpoint, QueryLogs.Offsets, hadoopConf).max
      val metadata = QueryLogs.metadata(checkpoint, QueryLogs.Offsets, newest, hadoopConf)
      (metadata \ "conf" \ SQLConf.STATE_STORE_PROVIDER_CLASS.key).extractOpt[String]
    }.toOption.flatten
  }

  /** Returns the first batch of the run, and so the version that its first tasks ask for. */
  private def nextBatch(checkpoint: Path, hadoopConf: Configuration): Long =
    QueryLogs.batches(checkpoint, QueryLogs.Offsets, hadoopConf).maxOption.fold(0L) { newest =>
      val logged = QueryLogs.batches(checkpoint, QueryLogs.Commits, hadoopConf)
      if (logged.contains(newest)) newest + 1 else newest
    }
}
