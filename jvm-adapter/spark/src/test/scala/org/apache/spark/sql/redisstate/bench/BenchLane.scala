package org.apache.spark.sql.redisstate.bench

import java.nio.file.{Files, Path}
import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

/** The rows of the benchmark: a key of one long (16 bytes) and a value of four (40 bytes). */
private[bench] object BenchRows {
  val KeySchema: StructType = StructType(Seq(StructField("k", LongType)))
  val ValueSchema: StructType =
    StructType(Seq("sum", "count", "first", "last").map(StructField(_, LongType)))

  def empty(fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    val length = 8 + 8 * fields
    row.pointTo(new Array[Byte](length), Platform.BYTE_ARRAY_OFFSET, length)
    row
  }
}

/** Times of one batch in one lane, summed over its partitions. */
private[bench] final case class Times(openNs: Long, updateNs: Long, commitNs: Long)

/** Times of a state load: until the version is open, and until each of its rows is read. */
private[bench] final case class Load(openNs: Long, readNs: Long)

/** One provider with some partitions of one operator; the partitions work one after the other. */
private[bench] final class BenchLane(
    val name: String,
    providerClass: String,
    conf: Map[String, String],
    folder: Path,
    partitions: Int) {
  import BenchRows._
  private val checkpoint = Files.createDirectories(folder.resolve(name).resolve("state"))
  private val runId = UUID.randomUUID().toString
  private var providers: Vector[StateStoreProvider] = Vector.tabulate(partitions)(make)
  private var version = 0L
  private val key = empty(1)
  private val value = empty(4)

  private def make(partition: Int): StateStoreProvider = {
    val sqlConf = new SQLConf
    conf.foreach { case (k, v) => sqlConf.setConfString(k, v) }
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, runId)
    val made = Class.forName(providerClass).getConstructor().newInstance()
      .asInstanceOf[StateStoreProvider]
    made.init(
      StateStoreId(checkpoint.toString, 0L, partition),
      KeySchema,
      ValueSchema,
      NoPrefixKeyStateEncoderSpec(KeySchema),
      useColumnFamilies = false,
      new StateStoreConf(sqlConf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    made
  }

  /**
   * Adds 1 to the sum and count of each key, as an aggregation does; key `k` lives in partition `k
   * % partitions`.
   */
  def batch(keys: Array[Long]): Times = {
    var times = Times(0, 0, 0)
    providers.zipWithIndex.foreach { case (provider, partition) =>
      val began = System.nanoTime()
      val store = provider.getStore(version)
      val opened = System.nanoTime()
      keys.foreach(k => if (k % partitions == partition) update(store, k))
      val updated = System.nanoTime()
      store.commit()
      val ended = System.nanoTime()
      store.metrics
      times = Times(
        times.openNs + opened - began,
        times.updateNs + updated - opened,
        times.commitNs + ended - updated)
    }
    version += 1
    times
  }

  private def update(store: StateStore, k: Long): Unit = {
    key.setLong(0, k)
    val old = store.get(key, StateStore.DEFAULT_COL_FAMILY_NAME)
    value.setLong(0, if (old == null) k else old.getLong(0) + k)
    value.setLong(1, if (old == null) 1 else old.getLong(1) + 1)
    value.setLong(2, if (old == null) version else old.getLong(2))
    value.setLong(3, version)
    store.put(key, value, StateStore.DEFAULT_COL_FAMILY_NAME)
  }

  def maintain(): Unit = providers.foreach(_.doMaintenance())

  /** Ends every provider and starts new ones, as an executor that just came up would. */
  def reload(): Load = {
    close()
    providers = Vector.tabulate(partitions)(make)
    val began = System.nanoTime()
    val stores = providers.map(_.getReadStore(version, None))
    val opened = System.nanoTime()
    stores.foreach(store => store.iterator().foreach(pair => pair.value.getLong(0)))
    val read = System.nanoTime()
    stores.foreach(_.abort())
    Load(opened - began, read - began)
  }

  /** Number of rows and a sum over keys and values that no order changes. */
  def digest(): (Long, Long) = {
    var rows = 0L
    var sum = 0L
    providers.foreach { provider =>
      val store = provider.getReadStore(version, None)
      store.iterator().foreach { pair =>
        rows += 1
        var hash = pair.key.getLong(0)
        (0 until 4).foreach(i => hash = hash * 1000003L + pair.value.getLong(i))
        sum += hash * 0x9e3779b97f4a7c15L
      }
      store.abort()
    }
    (rows, sum)
  }

  def close(): Unit = {
    providers.foreach(_.close())
    providers = Vector.empty
  }
}
