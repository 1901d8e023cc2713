package org.apache.spark.sql.redisstate.system

import java.util.Properties
import java.util.concurrent.ConcurrentHashMap
import java.util.function.Function

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.RedisStateStoreProvider
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.ExecutorRegistry

import org.redisstate.core.errors.RedisStateException

/**
 * A process: an executor, a driver, or both. It is loaded by a [[ProcessLoader]], so the adapter's
 * statics are its own.
 *
 * @param user of the server; without its rights nothing of the process reaches the server
 */
final class ProcessBody(spark: SparkSession, url: String, user: String)
    extends Function[Array[String], String] {
  import ProcessBody._

  private val providers = new ConcurrentHashMap[String, RedisStateStoreProvider]
  private val stores = new ConcurrentHashMap[String, StateStore]
  private val driver = new ProcessDriver(spark, options)
  private val hadoopConf = new Configuration(spark.sparkContext.hadoopConfiguration)
  private val runConfs = new ConcurrentHashMap[String, Configuration]

  override def apply(words: Array[String]): String =
    try s"ok ${run(words)}".trim
    catch {
      case e: Worker.Killed => throw e
      case e: Throwable => s"error ${kindOf(e)} ${told(e)}"
    }

  private def options: Map[String, String] = Map(
    "url" -> url,
    "username" -> user,
    "password" -> "x",
    "deadline" -> "2s",
    "localMemory" -> s"${MemoryBytes}b").map { case (name, value) =>
    RedisStateConf.Prefix + name -> value
  }

  private def run(words: Array[String]): String = words match {
    case Array("init", slot, root, run, queryId, partition, format, rest @ _*) =>
      providers.put(slot, provider(root, run, queryId, partition.toInt, format, rest))
      ""
    case Array("open", slot, task, version, uid) =>
      val store = inTask(slot)(providers.get(slot).getStore(version.toLong, named(uid)))
      stores.put(task, store)
      Rows.told(store)
    case Array("put", slot, task, key, value) =>
      inTask(slot)(stores.get(task).put(Rows.key(key), Rows.value(value.toInt)))
      ""
    case Array("fill", slot, task) =>
      val store = stores.get(task)
      inTask(slot)(Rows.large.foreach(key => store.put(key, Rows.value(0))))
      ""
    case Array("remove", slot, task, key) =>
      inTask(slot)(stores.get(task).remove(Rows.key(key)))
      ""
    case Array("commit", slot, task) =>
      val store = stores.get(task)
      val version = inTask(slot)(store.commit())
      stores.remove(task)
      val reloaded = store.metrics.customMetrics.collectFirst {
        case (metric, count) if metric.name.endsWith("BucketsReloaded") => count
      }
      val uid = store.getStateStoreCheckpointInfo().stateStoreCkptId.getOrElse("-")
      s"$version $uid ${reloaded.getOrElse(0L)}"
    case Array("abort", task, interrupted) =>
      if (interrupted == "true") Thread.currentThread.interrupt()
      try stores.remove(task).abort()
      finally Thread.interrupted()
      ""
    case Array("read", slot, version, uid) =>
      Rows.told(providers.get(slot).getReadStore(version.toLong, named(uid)))
    case Array("close", slot) =>
      providers.remove(slot).close()
      ""
    case Array("maintain", slot) =>
      providers.get(slot).doMaintenance()
      ""
    case Array("memory") =>
      val budget = ExecutorRegistry.memoryBudget(MemoryBytes)
      val (used, bound) = (budget.usedBytes, budget.boundBytes)
      if (used > bound)
        throw new IllegalStateException(s"$used bytes are kept, the bound is $bound")
      used.toString
    case Array("beat") =>
      ExecutorRegistry.beat()
      ""
    case Array("drop") =>
      providers.values.forEach(one =>
        try one.close()
        catch { case NonFatal(_) => () })
      ""
    case other => driver.run(other)
  }

  private def provider(
      root: String,
      run: String,
      queryId: String,
      partition: Int,
      format: String,
      more: Seq[String]): RedisStateStoreProvider = {
    val conf = new SQLConf
    (options ++ more.map(option)).foreach { case (name, value) => conf.setConfString(name, value) }
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format.toInt)
    conf.setConf(SQLConf.MIN_BATCHES_TO_RETAIN, RetainedBatches)
    // As Spark broadcasts it: one for all tasks of a run.
    val runConf = runConfs.computeIfAbsent(
      run,
      _ => {
        val conf = new Configuration(hadoopConf)
        conf.set(StreamExecution.RUN_ID_KEY, run)
        conf.set(StreamExecution.QUERY_ID_KEY, queryId)
        conf
      })
    val made = new RedisStateStoreProvider
    made.init(
      StateStoreId(root, 0L, partition),
      Rows.KeySchema,
      Rows.ValueSchema,
      NoPrefixKeyStateEncoderSpec(Rows.KeySchema),
      false,
      new StateStoreConf(conf),
      runConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    queryIds.put(made, queryId)
    made
  }

  private val queryIds = new ConcurrentHashMap[RedisStateStoreProvider, String]

  /** As a task of the query. */
  private def inTask[A](slot: String)(work: => A): A = {
    val made = providers.get(slot)
    val properties = new Properties
    properties.setProperty(StreamExecution.QUERY_ID_KEY, queryIds.get(made))
    val partition = made.stateStoreId.partitionId
    TaskContext.setTaskContext(
      new TaskContextImpl(
        0,
        0,
        partition,
        0L,
        0,
        Partitions,
        null,
        properties,
        null,
        null,
        1,
        Map.empty))
    try work
    finally TaskContext.unset()
  }
}

private[system] object ProcessBody {
  private val Partitions = 2
  private val MemoryBytes = 1L << 20
  private val RetainedBatches = 4

  /** Parses `name=value`. */
  def option(text: String): (String, String) =
    RedisStateConf.Prefix + text.takeWhile(_ != '=') -> text.dropWhile(_ != '=').drop(1)

  private def named(uid: String): Option[String] = Option.when(uid != "-")(uid)

  /** Kind of the error that a user sees, as in the messages and docs/errors.md. */
  private def kindOf(e: Throwable): String = causes(e).collectFirst {
    case ours: RedisStateException => ours.kind
  }.getOrElse(e.getClass.getSimpleName)

  private def told(e: Throwable): String =
    causes(e).map(c => s"${c.getClass.getSimpleName}: ${c.getMessage}").mkString(" <- ")

  private def causes(e: Throwable): Seq[Throwable] =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).toSeq
}
