package org.apache.spark.sql.redisstate.move

import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state._

/** Reads all rows of one partition of a store at one version. For one thread. */
private[redisstate] final class StoreReader(
    spec: StoreSpec,
    side: StateSide,
    partition: Int,
    uid: Option[String],
    hadoopConf: Configuration)
    extends AutoCloseable {
  private val provider = StoreReader.provider(spec, side, partition, hadoopConf)

  /** A store with families has to be told them, which only one for writing can be in every Spark minor. */
  private val store: ReadStateStore =
    try if (spec.usesFamilies) withFamilies() else provider.getReadStore(side.version, uid)
    catch {
      case e: Throwable =>
        provider.close()
        throw e
    }

  private def withFamilies(): StateStore = {
    val opened = provider.getStore(side.version, uid)
    StoreReader.createFamilies(spec, opened)
    opened
  }

  /** May be called once. */
  def entries: Iterator[StateEntry] = {
    val entry = new StateEntry
    spec.filled.iterator.flatMap { at =>
      val family = spec.families(at)
      store.iterator(family.name).map { pair =>
        entry.family = at
        entry.key = pair.key
        if (family.multiValue) {
          // The look-up of the list may use the row of the key again.
          entry.key = pair.key.copy()
          entry.value = null
          entry.list = store.valuesIterator(entry.key, family.name).map(_.copy()).toArray
        } else {
          entry.list = null
          entry.value = pair.value
        }
        entry
      }
    }
  }

  /** Of all rows. */
  def digest(): StateDigest = {
    val sum = new DigestSum(spec.families.map(_.name))
    entries.foreach(sum.add)
    sum.result
  }

  override def close(): Unit =
    try store.abort()
    finally provider.close()
}

private[redisstate] object StoreReader {

  /** A provider of its own, that no other part of Spark knows. */
  def provider(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      hadoopConf: Configuration): StateStoreProvider = {
    val id = StateStoreId(side.stateRoot, spec.operator, partition, spec.name)
    val default = spec.default
    StateStoreProvider.createAndInit(
      StateStoreProviderId(id, UUID.fromString(side.runId)),
      default.keySchema,
      default.valueSchema,
      default.encoder,
      spec.usesFamilies,
      side.conf,
      // Spark writes the run into it.
      new Configuration(hadoopConf),
      default.multiValue,
      spec.schemas.map(new InMemoryStateSchemaProvider(_))
    )
  }

  def createFamilies(spec: StoreSpec, store: StateStore): Unit =
    spec.filled.map(spec.families).filter(_.name != StateStore.DEFAULT_COL_FAMILY_NAME).foreach {
      family =>
        store.createColFamilyIfAbsent(
          family.name,
          family.keySchema,
          family.valueSchema,
          family.encoder,
          family.multiValue,
          family.internal)
    }
}
