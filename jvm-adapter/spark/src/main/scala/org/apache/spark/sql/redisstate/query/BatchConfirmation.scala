package org.apache.spark.sql.redisstate.query

import java.util.UUID
import java.util.concurrent.{ScheduledThreadPoolExecutor, TimeUnit}

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.checkpoint.QueryLogs
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, RegisteredStores}
import org.apache.spark.util.ShutdownHookManager

import org.redisstate.core.copy.CopiedStore
import org.redisstate.core.errors.{RedisStateException, UnavailableException}
import org.redisstate.core.ids.{PartitionId, Pin}
import org.redisstate.core.protocol.{
  CheckpointFormat,
  PartitionClient,
  ProtocolSettings,
  RunRegistry
}

/**
 * Shows the state after the last batch to live readers, who read the version that was opened last.
 * While batch follows batch, the tasks of the next one open it; where none follows, because the
 * query ended or waits, the driver does.
 *
 * It opens as a task of the run would, and only after a batch of which the run itself reported
 * progress: Spark does so after the run's own entry in the commit log. So nothing is opened that
 * Spark has not logged, and where two runs met, the one that logged goes on.
 *
 * @param gen id of the checkpoint
 * @param isBusy whether a batch is running, whose tasks open what was committed before
 */
private[redisstate] final class BatchConfirmation(
    runId: UUID,
    gen: String,
    checkpoint: Path,
    hadoopConf: Configuration,
    conf: RedisStateConf,
    isBusy: () => Boolean)
    extends Logging {
  import BatchConfirmation._

  /** Newest batch that the run has logged, and newest confirmed batch. */
  @volatile private var logged = -1L
  @volatile private var confirmed = -1L
  private val thread = new ScheduledThreadPoolExecutor(
    1,
    (work: Runnable) => {
      val made = new Thread(work, s"redis-state-confirm-$runId")
      made.setDaemon(true)
      made
    })
  thread.setExecuteExistingDelayedTasksAfterShutdownPolicy(false)

  /** Spark has logged this batch. */
  def batchDone(batch: Long): Unit = {
    logged = batch
    later(batch)
  }

  /**
   * The run is over: the end of the JVM waits a while for this; the caller, who is Spark's listener
   * bus, does not.
   */
  def finish(): Unit = {
    val hook = Try(ShutdownHookManager.addShutdownHook(BeforeSpark)(() => awaitEnd()))
    thread.execute { () =>
      confirm(logged)
      hook.foreach(ShutdownHookManager.removeShutdownHook)
    }
    thread.shutdown()
    // The JVM is ending already.
    if (hook.isFailure) awaitEnd()
  }

  private def awaitEnd(): Unit = {
    thread.awaitTermination(FinishMaxMs, TimeUnit.MILLISECONDS)
    ()
  }

  private def later(batch: Long): Unit =
    try {
      thread.schedule(
        (() => if (batch == logged) { if (isBusy()) later(batch) else confirm(batch) }): Runnable,
        QuietMs,
        TimeUnit.MILLISECONDS)
      ()
    } catch { case _: java.util.concurrent.RejectedExecutionException => () }

  private def confirm(batch: Long): Unit = if (batch > confirmed) {
    try {
      val backend = ExecutorRegistry.acquire(conf.connection)
      try {
        val registry = new RunRegistry(backend, conf.keyPrefix, gen)
        val settings = ProtocolSettings(1, keepMs = 0, CheckpointFormat.V2, conf.signer())
        val uids = QueryLogs.uniqueIds(checkpoint, batch, hadoopConf)
        val opened = RegisteredStores.of(gen, registry.fields()).map { store =>
          val attempts = uids.map(_.getOrElse(store.operator, Nil))
          partitions(store, attempts).count { number =>
            val id = PartitionId(conf.keyPrefix, gen, store.operator, number, store.name)
            val client = new PartitionClient(backend, id, settings, registry)
            attempts.fold(Seq(Option.empty[String]))(_(number).map(Some(_)))
              .exists(open(client, batch + 1, _))
          }
        }
        confirmed = batch
        logInfo(s"Run $runId confirmed batch $batch in ${opened.sum} partitions of $checkpoint")
      } finally ExecutorRegistry.release(conf.connection)
    } catch {
      case NonFatal(e) =>
        logWarning(
          s"Live readers see batch $batch of $checkpoint only after the next batch begins; the state itself is safe",
          e)
    }
  }

  /**
   * Opens a version for the run; @return whether the run has opened it: another run may hold the
   * partition, or have opened more
   */
  private def open(client: PartitionClient, version: Long, uid: Option[String]): Boolean =
    try client.open(runId.toString, Some(version), uid, uid.map(Pin(version, _)).toSeq).held
    catch {
      case e: UnavailableException => throw e
      case e: RedisStateException =>
        logDebug(s"${client.id} was not opened at version $version: ${e.getMessage}")
        false
    }

  private def partitions(
      store: CopiedStore,
      attempts: Option[Seq[Seq[String]]]): Range = attempts match {
    case Some(of) => of.indices
    case None => 0 until store.partitions
  }
}

private[redisstate] object BatchConfirmation {

  /** Time after a batch in which a successor that follows at once has begun. */
  private val QuietMs = 1000L
  private val FinishMaxMs = 10000L
  private val BeforeSpark = ShutdownHookManager.SPARK_CONTEXT_SHUTDOWN_PRIORITY + 1
}
