package org.apache.spark.sql.redisstate.move.rescale

import org.apache.spark.sql.redisstate.move.checkpoint.QueryCheckpoint
import org.apache.spark.sql.redisstate.move.engine.{RowRouting, StateEntry, StoreSpec}
import org.apache.spark.TaskContext
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.rows.PartitionKeys

import org.redisstate.core.errors.{ConfigException, FormatException}

/**
 * Stores of a checkpoint that get another number of partitions, and their routing.
 *
 * @param single stores whose operator has one partition whatever the number is: an aggregation
 * without a key, a limit
 * @param spread the others
 */
private[redisstate] final case class Rescale(
    single: Seq[StoreSpec],
    spread: Seq[StoreSpec],
    routing: RowRouting) {
  def stores: Seq[StoreSpec] = single ++ spread

  /** Partitions of all stores from then on. */
  def after: Int = single.map(_.partitions).sum + spread.size * routing.partitions
}

private[redisstate] object Rescale {
  private val PartitionsMax = 1 << 16

  /** @throws ConfigException what cannot be served, by name */
  def apply(checkpoint: QueryCheckpoint, stores: Seq[StoreSpec], partitions: Int): Rescale = {
    def refused(why: String) = new ConfigException(
      s"change the number of partitions of ${checkpoint.folder}: $why Nothing was changed.")
    if (partitions < 1 || partitions > PartitionsMax)
      throw refused(s"$partitions partitions were requested. Give 1 to $PartitionsMax.")
    val before =
      checkpoint.partitions.getOrElse(
        throw refused(
          "its offset log does not record the number of partitions. Run one batch with a newer Spark."))
    if (before == partitions) throw refused(s"it already has $partitions partitions.")
    stores.find(store => !store.isSingle && store.partitions != before).foreach { store =>
      throw refused(
        s"its offset log has $before partitions, but the metadata of $store has ${store.partitions}. The checkpoint " +
          "was assembled from parts, or a change of the number at a start was interrupted. Start the query once, which finishes " +
          "such a change; otherwise restore the whole folder from a backup.")
    }
    // A checkpoint that began before Spark 3.3 may spread its rows by some of their keys alone.
    if (!checkpoint.conf.get(SQLConf.STATEFUL_OPERATOR_USE_STRICT_DISTRIBUTION.key).contains(
        "true")) {
      throw refused(
        "it began with a Spark before 3.3, so the partition of a row cannot be determined. Start a new " +
          "checkpoint.")
    }
    val keys = stores.map(store => key(store) -> keysOf(store)).toMap
    val (single, spread) = stores.partition(_.isSingle)
    Rescale(single, spread, new ByKey(partitions, keys))
  }

  private def key(store: StoreSpec): (Long, String) = (store.operator, store.name)

  /** Returns the partition keys by the position of the family. */
  private def keysOf(store: StoreSpec): Seq[PartitionKeys] = {
    val variables = store.variables
    store.families.indices.map { at =>
      val family = store.families(at)
      // A processor never writes into the default family.
      if (!store.filled.contains(at)) PartitionKeys(Nil)
      else
        PartitionKeys(store.operatorName, store.name, family.name, family.keySchema, variables)
    }
  }

  private final class ByKey(
      override val partitions: Int,
      keys: Map[(Long, String), Seq[PartitionKeys]])
      extends RowRouting {

    /**
     * Checks that each row lies where Spark's hash puts it: only then is its new partition known.
     */
    override def of(store: StoreSpec): StateEntry => Int = {
      val here = TaskContext.getPartitionId()
      val ofFamilies = keys(key(store))
      val (before, after) =
        (ofFamilies.map(_.of(store.partitions)).toArray, ofFamilies.map(_.of(partitions)).toArray)
      entry => {
        val found = before(entry.family)(entry.key)
        if (found != here) {
          throw new FormatException(
            s"change the number of partitions of $store: a row of family '${store.families(entry.family).name}' lies in " +
              s"partition $here, but Spark's hash of its key gives $found. So this state cannot be redistributed, and the " +
              "query was not switched: it continues as before. Please report this.")
        }
        after(entry.family)(entry.key)
      }
    }
  }
}
