package org.apache.spark.sql.redisstate.move.engine

import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.stores.{MovesState, RedisReadStateStore}

import org.redisstate.core.local.Expiry

/** Reads all rows of one partition of a store at one version. For one thread. */
private[redisstate] final class StoreReader(
    spec: StoreSpec,
    side: StateSide,
    partition: Int,
    uid: Option[String],
    hadoopConf: Configuration)
    extends AutoCloseable {
  private val provider = StoreReader.provider(spec, side, partition, hadoopConf)

  private val store: ReadStateStore =
    try provider match {
        case ours: MovesState => toScan(ours)
        case _ =>
          if (spec.usesFamilies) withFamilies() else provider.getReadStore(side.version, uid)
      }
    catch {
      case e: Throwable =>
        provider.close()
        throw e
    }

  private def toScan(ours: MovesState): RedisReadStateStore = {
    val opened = ours.getStoreToScan(side.version, uid)
    spec.tell(opened.registerColFamily(_, _, _, _, _, _))
    opened
  }

  /** Opens a store of Spark's providers for writing: only such a store takes families in every minor. */
  private def withFamilies(): StateStore = {
    val opened = provider.getStore(side.version, uid)
    spec.tell(opened.createColFamilyIfAbsent(_, _, _, _, _, _))
    opened
  }

  /** Time of the version in seconds since 1970; None where no rows expire. */
  def timeS: Option[Long] = store match {
    case ours: RedisReadStateStore => ours.timeS
    case _ => None
  }

  /** May be called once. */
  def entries: Iterator[StateEntry] = {
    val entry = new StateEntry
    spec.filled.iterator.flatMap { at =>
      val family = spec.families(at)
      entry.family = at
      if (family.multiValue) {
        lists(family.name).map { case (key, list) =>
          entry.key = key
          entry.value = null
          entry.list = list.map(_.copy()).toArray
          entry.expiryS = Expiry.Never
          entry
        }
      } else {
        entry.list = null
        rows(family.name).map { case (key, value, expiryS) =>
          entry.key = key
          entry.value = value
          entry.expiryS = expiryS
          entry
        }
      }
    }
  }

  private def rows(family: String): Iterator[(UnsafeRow, UnsafeRow, Long)] = store match {
    case ours: RedisReadStateStore => ours.rowsWithExpiry(family)
    case _ => store.iterator(family).map(pair => (pair.key, pair.value, Expiry.Never))
  }

  private def lists(family: String): Iterator[(UnsafeRow, Iterator[UnsafeRow])] = store match {
    case ours: RedisReadStateStore => ours.lists(family)
    case _ =>
      store.iterator(family).map { pair =>
        // The look-up of the list may use the row of the key again.
        val key = pair.key.copy()
        key -> store.valuesIterator(key, family)
      }
  }

  /** Returns the digest of all rows. */
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

  /** Makes a provider that no other part of Spark knows. */
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
}
