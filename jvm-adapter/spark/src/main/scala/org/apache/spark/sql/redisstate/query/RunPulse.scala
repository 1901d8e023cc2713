package org.apache.spark.sql.redisstate.query

import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, Executors, ScheduledExecutorService, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, StateQuota}

import org.redisstate.core.protocol.RunRegistry

/**
 * Reports to Redis every minute that the driver of a run is alive: while its query waits for data,
 * or its executors were given up, nothing else shows that the state is in use. A thread for each
 * run, so that a server that is down does not block another one.
 *
 * @param lives whether the query still runs: a session that is stopped as a whole may not say that
 *   it ended
 */
private[redisstate] final class RunPulse(
    runId: UUID,
    gen: String,
    conf: RedisStateConf,
    lives: () => Boolean)
    extends Logging {
  private val timer: ScheduledExecutorService = Executors.newSingleThreadScheduledExecutor {
    work =>
      val thread = new Thread(work, s"redis-state-run-$runId")
      thread.setDaemon(true)
      thread
  }

  /** Quota with its own connections, so that it knows what it has logged already. */
  private val quota = Option.when(conf.quota.isSet)(ExecutorRegistry.quota(
    conf.connection,
    ExecutorRegistry.acquire(conf.connection),
    conf.keyPrefix,
    gen,
    conf.quota))
  timer.scheduleWithFixedDelay(
    () => beat(),
    0L,
    RunPulse.EveryMs,
    TimeUnit.MILLISECONDS)

  def beat(): Unit = if (lives()) {
    tell()
    quota.foreach(watch)
  } else RunPulse.stop(runId)

  private def watch(of: StateQuota): Unit =
    try of.watch()
    catch {
      case NonFatal(e) =>
        logWarning(s"The state of run $runId could not be measured", e)
    }

  private def tell(): Unit =
    try {
      val backend = ExecutorRegistry.acquire(conf.connection)
      try new RunRegistry(backend, conf.keyPrefix, gen).alive(runId.toString)
      finally ExecutorRegistry.release(conf.connection)
    } catch {
      case NonFatal(e) =>
        logWarning(s"Run $runId could not be reported as alive; no state depends on the report", e)
    }

  def stop(): Unit = {
    timer.shutdown()
    quota.foreach(_ => ExecutorRegistry.release(conf.connection))
  }
}

private[redisstate] object RunPulse {
  private val EveryMs = 60000L
  private val running = new ConcurrentHashMap[UUID, RunPulse]

  def start(runId: UUID, gen: String, conf: RedisStateConf, lives: () => Boolean): Unit =
    Option(running.put(runId, new RunPulse(runId, gen, conf, lives))).foreach(_.stop())

  def stop(runId: UUID): Unit = Option(running.remove(runId)).foreach(_.stop())

  /** Beats for all living runs, every minute; returns their number. */
  def beatAll(): Int = {
    running.values.asScala.toSeq.foreach(_.beat())
    running.size
  }
}
