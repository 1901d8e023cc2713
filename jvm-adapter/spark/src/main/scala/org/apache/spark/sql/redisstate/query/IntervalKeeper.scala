package org.apache.spark.sql.redisstate.query

import java.util.UUID
import java.util.concurrent.{ExecutorService, Executors, RejectedExecutionException}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.checkpoint.QueryLogs
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, RegisteredStores}

import org.redisstate.core.protocol.RunRegistry
import org.redisstate.core.protocol.names.{KeptStore, VersionNames}

/**
 * Keeps the state after the first batch of each interval under a name (option `keepEvery`), on a
 * thread of the driver. No batch waits for it or fails with it: the next batch repeats what failed.
 *
 * @param gen id of the checkpoint
 * @param everyMs length of an interval
 */
private[redisstate] final class IntervalKeeper(
    runId: UUID,
    gen: String,
    checkpoint: Path,
    hadoopConf: Configuration,
    conf: RedisStateConf,
    everyMs: Long)
    extends Logging {
  import IntervalKeeper._

  /** Newest interval with a kept version, by the clock of this machine. */
  @volatile private var kept = -1L
  @volatile private var waiting = false
  private val thread: ExecutorService = Executors.newSingleThreadExecutor { work =>
    val made = new Thread(work, s"redis-state-keep-$runId")
    made.setDaemon(true)
    made
  }

  /** Keeps a batch that Spark has logged, if it is the first of its interval. */
  def batchDone(batch: Long): Unit = {
    val interval = System.currentTimeMillis() / everyMs
    if (interval > kept && !waiting) {
      waiting = true
      try thread.execute(() => keepIfDue(batch, interval))
      catch { case _: RejectedExecutionException => () }
    }
  }

  /** Ends the thread after the step that it runs; the caller does not wait. */
  def finish(): Unit = thread.shutdown()

  private def keepIfDue(batch: Long, interval: Long): Unit =
    try {
      keep(batch)
      kept = interval
    } catch {
      case NonFatal(e) =>
        logWarning(
          s"Batch $batch of $checkpoint was not kept under a name; the next batch tries again",
          e)
    } finally waiting = false

  /** Keeps a batch, unless an earlier run has kept one of the same interval. */
  private[query] def keep(batch: Long): Unit = {
    val backend = ExecutorRegistry.acquire(conf.connection)
    try {
      val registry = new RunRegistry(backend, conf.keyPrefix, gen)
      val names = new VersionNames(backend, conf.keyPrefix, gen)
      val (fields, nowMs) = (registry.fields(), registry.nowMs)
      val isDue = names.timesOf(fields, NamePrefix).forall(_ / everyMs < nowMs / everyMs)
      if (isDue) {
        names.removeExpired(fields, nowMs)
        val uids = QueryLogs.uniqueIds(checkpoint, batch, hadoopConf)
        val stores = RegisteredStores.of(gen, fields).map { store =>
          val attempts = uids.map(_.getOrElse(store.operator, Nil))
          KeptStore(store.operator, store.name, store.partitions, attempts)
        }
        val name = s"$NamePrefix$batch"
        if (names.keep(name, batch, stores, nowMs, conf.keepForMs))
          logInfo(s"Kept the state after batch $batch of $checkpoint as $name")
        else
          throw new IllegalStateException(
            s"another version of $checkpoint has the name $name already: the query was set back, or another run of it was faster")
      }
    } finally ExecutorRegistry.release(conf.connection)
  }
}

private[redisstate] object IntervalKeeper {
  private val NamePrefix = "auto-"
}
