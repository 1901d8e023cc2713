package org.apache.spark.sql.redisstate.batches

import java.util.{Collections, LinkedHashMap}
import java.util.Map.Entry

import org.apache.spark.{
  Dependency,
  OneToOneDependency,
  Partition,
  SparkContext,
  SparkEnv,
  TaskContext
}
import org.apache.spark.rdd.RDD
import org.apache.spark.scheduler.ExecutorCacheTaskLocation
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.util.AccumulatorV2

import org.redisstate.core.concurrent.GuardedBy

/**
 * Executors that ran the partitions of Python's stores in their last batch. A Python worker keeps
 * the state that it has read, so the next batch of a partition should run on the same executor.
 * Spark does that for its own stores with `StateStoreRDD` and `StateStoreCoordinator`.
 */
private[redisstate] object BatchPlaces {

  /** Most known stores; beyond them, the store that had no batch for longest is dropped. */
  private val StoresMax = 1000

  private val known = Collections.synchronizedMap(
    new LinkedHashMap[String, Places](16, 0.75f, true) {
      override def removeEldestEntry(eldest: Entry[String, Places]): Boolean = size > StoresMax
    })

  /**
   * Returns the same rows in the same partitions, each of which prefers its last executor. Nothing
   * runs before the result is evaluated. Called by `redis_state.map_partitions_with_state_store`.
   *
   * @param store whose batch it is
   */
  def placed(rows: DataFrame, store: String): DataFrame = {
    val data = rows.asInstanceOf[Dataset[_]]
    val context = data.sparkSession.sparkContext
    val places = known.computeIfAbsent(store, _ => new Places)
    places.synchronized { if (!places.isRegistered) places.register(context) }
    data.sparkSession.internalCreateDataFrame(
      new PlacedRows(context, () => data.queryExecution.toRdd, places.value, places),
      data.schema)
  }
}

/** Executors by number of the partition, as the scheduler names them; the tasks that ended last count. */
private[redisstate] final class Places extends AccumulatorV2[(Int, String), Map[Int, String]] {
  @GuardedBy("this") @volatile private var places = Map.empty[Int, String]

  override def isZero: Boolean = places.isEmpty
  override def value: Map[Int, String] = places
  override def reset(): Unit = synchronized { places = Map.empty }
  override def add(place: (Int, String)): Unit = synchronized { places += place }
  override def merge(other: AccumulatorV2[(Int, String), Map[Int, String]]): Unit =
    synchronized { places ++= other.value }
  override def copy(): Places = {
    val made = new Places
    made.places = places
    made
  }
}

/**
 * @param rows made when they are asked for, since to make them may run the stages below
 * @param places where each partition had best go
 * @param seen told where each partition went
 */
private[redisstate] final class PlacedRows(
    context: SparkContext,
    @transient private val rows: () => RDD[InternalRow],
    @transient private val places: Map[Int, String],
    seen: Places)
    extends RDD[InternalRow](context, Nil) {

  override protected def getDependencies: Seq[Dependency[_]] = Seq(new OneToOneDependency(rows()))

  override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions

  override protected def getPreferredLocations(split: Partition): Seq[String] =
    places.get(split.index).toSeq

  override def compute(split: Partition, task: TaskContext): Iterator[InternalRow] = {
    val here = SparkEnv.get
    val place = ExecutorCacheTaskLocation(here.blockManager.blockManagerId.host, here.executorId)
    seen.add(split.index -> place.toString)
    firstParent[InternalRow].iterator(split, task)
  }
}
