package org.apache.spark.sql.redisstate.move.engine

import org.apache.spark.sql.redisstate.conf.SparkMinor

import org.redisstate.core.errors.ConfigException

/** Providers that state moves between, with their limits. */
private[redisstate] object Providers {
  private val Package = "org.apache.spark.sql.execution.streaming.state"

  /** Class name, as confs and offset logs have it: the class is above what moves state. */
  val Redis: String = "org.apache.spark.sql.redisstate.RedisStateStoreProvider"
  val HdfsBacked: String = s"$Package.HDFSBackedStateStoreProvider"
  val RocksDb: String = s"$Package.RocksDBStateStoreProvider"

  /** @throws ConfigException for a target that this Spark cannot be made to write */
  def checkTarget(provider: String, stores: Seq[StoreSpec], withIds: Boolean): Unit =
    provider match {
      case Redis => ()
      case RocksDb if EmptyStore.IsSparks => ()
      case RocksDb => throw refused(
          provider,
          s"Spark ${SparkMinor.BuiltFor} cannot write it at a version that it has not reached. Move with Spark 4.2 or later.")
      case HdfsBacked if withIds =>
        throw refused(
          provider,
          "the checkpoint is of format 2, which this provider does not have. Move to RocksDB.")
      case HdfsBacked => stores.find(_.usesFamilies).foreach { store =>
          throw refused(
            provider,
            s"$store has column families, which this provider does not have. Move to RocksDB.")
        }
      case other => throw refused(other, "redis-state cannot write the state of this provider.")
    }

  private def refused(provider: String, why: String) = new ConfigException(
    s"move state to ${provider.split('.').last}: $why Nothing was changed.")
}
