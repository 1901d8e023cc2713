package org.apache.spark.sql.redisstate.system

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.{Properties, Random}
import java.util.concurrent.ConcurrentHashMap
import java.util.function.Function

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.errors.RedisStateException

/**
 * A process: an executor, a driver, or both. It is loaded by a [[ProcessLoader]], so the adapter's statics are its own.
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
    "localMemory" -> "8m").map { case (name, value) => RedisStateConf.Prefix + name -> value }

  private def run(words: Array[String]): String = words match {
    case Array("init", slot, root, run, queryId, partition, format, rest @ _*) =>
      providers.put(slot, provider(root, run, queryId, partition.toInt, format, rest))
      ""
    case Array("open", slot, task, version, uid) =>
      val store = inTask(slot)(providers.get(slot).getStore(version.toLong, named(uid)))
      stores.put(task, store)
      rows(store)
    case Array("put", slot, task, key, value) =>
      inTask(slot)(stores.get(task).put(keyRow(key), valueRow(value.toInt)))
      ""
    case Array("fill", slot, task, count) =>
      val store = stores.get(task)
      inTask(slot)(large(count.toInt).foreach(key => store.put(keyRow(key), valueRow(0))))
      ""
    case Array("remove", slot, task, key) =>
      inTask(slot)(stores.get(task).remove(keyRow(key)))
      ""
    case Array("commit", slot, task) =>
      val store = stores.remove(task)
      val version = inTask(slot)(store.commit())
      s"$version ${store.getStateStoreCheckpointInfo().stateStoreCkptId.getOrElse("-")}"
    case Array("abort", task, interrupted) =>
      if (interrupted == "true") Thread.currentThread.interrupt()
      try stores.remove(task).abort()
      finally Thread.interrupted()
      ""
    case Array("read", slot, version, uid) =>
      rows(providers.get(slot).getReadStore(version.toLong, named(uid)))
    case Array("close", slot) =>
      providers.remove(slot).close()
      ""
    case Array("maintain", slot) =>
      providers.get(slot).doMaintenance()
      ""
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
    val runConf = new Configuration(hadoopConf)
    runConf.set(StreamExecution.RUN_ID_KEY, run)
    runConf.set(StreamExecution.QUERY_ID_KEY, queryId)
    val made = new RedisStateStoreProvider
    made.init(
      StateStoreId(root, 0L, partition),
      KeySchema,
      ValueSchema,
      NoPrefixKeyStateEncoderSpec(KeySchema),
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
  private val RetainedBatches = 4
  private val KeySchema = StructType(Seq(StructField("k", StringType)))
  private val ValueSchema = StructType(Seq(StructField("v", IntegerType)))

  /** From `name=value`. */
  def option(text: String): (String, String) =
    RedisStateConf.Prefix + text.takeWhile(_ != '=') -> text.dropWhile(_ != '=').drop(1)

  private val toKey = UnsafeProjection.create(KeySchema)
  private val toValue = UnsafeProjection.create(ValueSchema)

  private def keyRow(key: String): UnsafeRow =
    row(toKey, UTF8String.fromString(key))
  private def valueRow(value: Int): UnsafeRow = row(toValue, value)
  private def row(project: UnsafeProjection, value: Any): UnsafeRow = project.synchronized {
    project(new GenericInternalRow(Array[Any](value))).copy()
  }

  /** Keys that compress badly, of half a MiB each. */
  private def large(count: Int): Iterator[String] = {
    val random = new Random(count)
    Iterator.fill(count) {
      val bytes = new Array[Byte](LargeChars)
      random.nextBytes(bytes)
      new String(bytes.map(b => (b & 0x7f).toByte), US_ASCII)
    }
  }

  private val LargeChars = 1 << 19

  private def named(uid: String): Option[String] = Option.when(uid != "-")(uid)

  private def rows(store: ReadStateStore): String = store.iterator().map(pair =>
    s"${pair.key.getUTF8String(0)}=${pair.value.getInt(0)}").toSeq.sorted.mkString(",")

  /** What a user would look at: the kind that the messages and docs/errors.md speak of. */
  private def kindOf(e: Throwable): String = causes(e).collectFirst {
    case ours: RedisStateException => ours.kind
  }.getOrElse(e.getClass.getSimpleName)

  private def told(e: Throwable): String =
    causes(e).map(c => s"${c.getClass.getSimpleName}: ${c.getMessage}").mkString(" <- ")

  private def causes(e: Throwable): Seq[Throwable] =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).toSeq
}
