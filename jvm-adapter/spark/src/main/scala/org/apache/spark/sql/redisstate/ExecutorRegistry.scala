package org.apache.spark.sql.redisstate

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.Logging

import org.redisstate.core.backend.{
  Clock,
  ConnectionSettings,
  RedisBackend,
  ServerChecks,
  Transports
}
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.protocol.{PartitionClient, RunRegistry}
import org.redisstate.core.store.MemoryBudget

/**
 * What all stores of one executor process share: a connection pool for each server, one memory budget, and one heartbeat that reports
 * the instances and renews ephemeral checkpoints.
 */
private[redisstate] object ExecutorRegistry extends Logging {
  val InstanceTtlMs: Long = 60000L
  private val HeartbeatMs = InstanceTtlMs / 3

  private final class Shared(val backend: RedisBackend) {
    var users = 0
    val instances = new ConcurrentHashMap[PartitionId, Instance]
  }

  /** @param keepMs 0, or the expiry of its keys, which the heartbeat renews */
  final case class Instance(
      client: PartitionClient,
      registry: RunRegistry,
      runId: String,
      keepMs: Long)

  private val backends = mutable.HashMap.empty[ConnectionSettings, Shared]
  private var budget: MemoryBudget = _
  private var heartbeatStarted = false

  /** Each call is paid back by one `release`. */
  def acquire(settings: ConnectionSettings): RedisBackend = {
    val shared = synchronized {
      startHeartbeat()
      val found = backends.getOrElseUpdate(settings, new Shared(connect(settings)))
      found.users += 1
      found
    }
    shared.backend
  }

  def release(settings: ConnectionSettings): Unit = synchronized {
    backends.get(settings).foreach { shared =>
      shared.users -= 1
      if (shared.users == 0) {
        backends.remove(settings)
        shared.backend.close()
      }
    }
  }

  def register(settings: ConnectionSettings, id: PartitionId, instance: Instance): Unit =
    shared(settings).foreach(_.instances.put(id, instance))

  def unregister(settings: ConnectionSettings, id: PartitionId, runId: String): Unit =
    shared(settings).foreach(_.instances.computeIfPresent(
      id,
      (_, i) => if (i.runId == runId) null else i))

  /** The first store of the process decides; one executor has one bound. */
  def memoryBudget(bytes: Long): MemoryBudget = synchronized {
    if (budget == null) budget = new MemoryBudget(bytes)
    budget
  }

  def host: String = Option(SparkEnv.get).fold("local")(_.blockManager.blockManagerId.host)
  def executorId: String = Option(SparkEnv.get).fold("local")(_.executorId)

  private def shared(settings: ConnectionSettings): Option[Shared] =
    synchronized(backends.get(settings))

  private def connect(settings: ConnectionSettings): RedisBackend =
    new RedisBackend(
      Transports.to(settings),
      settings.deadlineMs,
      Clock.System,
      () => Option(TaskContext.get()).exists(_.isInterrupted()),
      ServerChecks.check(settings.url.toString, settings.durability, _),
      settings.durability,
      // The server has to answer well before its connection is taken for broken.
      settings.socketTimeoutMs / 2L
    )

  private def startHeartbeat(): Unit =
    if (!heartbeatStarted) {
      heartbeatStarted = true
      val timer = Executors.newSingleThreadScheduledExecutor { work =>
        val thread = new Thread(work, "redis-state-heartbeat")
        thread.setDaemon(true)
        thread
      }
      timer.scheduleWithFixedDelay(() => beat(), HeartbeatMs, HeartbeatMs, TimeUnit.MILLISECONDS)
      ()
    }

  /** Every `HeartbeatMs`. */
  def beat(): Unit = synchronized(backends.values.toSeq).foreach { shared =>
    try {
      val all = shared.instances.asScala.toMap
      val json = (id: PartitionId) =>
        compact(render(("host" -> host) ~ ("executor" -> executorId) ~ ("run" -> all(id).runId)))
      RunRegistry.reportInstances(shared.backend, all.keys.toSeq, json, InstanceTtlMs)
      val ephemeral = all.filter(_._2.keepMs > 0)
      ephemeral.values.foreach(_.client.renew())
      ephemeral.groupMapReduce(_._1.gen)(_._2)((one, _) => one).values
        .foreach(i => i.registry.renew(i.keepMs))
    } catch {
      case NonFatal(e) => logWarning("The heartbeat could not be sent; no state depends on it", e)
    }
  }
}
