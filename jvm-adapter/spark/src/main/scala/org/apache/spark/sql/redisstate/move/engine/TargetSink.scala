package org.apache.spark.sql.redisstate.move.engine

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.stores.MovesState

import org.redisstate.core.errors.UnavailableException

/** Writes a version into a provider that did not build it from earlier ones. For one thread. */
private[redisstate] sealed trait TargetSink extends AutoCloseable {

  /**
   * Writes a row; each key comes once.
   *
   * @param expiryS of the row, for the provider whose rows expire
   */
  def put(key: UnsafeRow, value: UnsafeRow, family: String, expiryS: Long): Unit

  /** @param values one or more */
  def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit

  /** @return Spark's unique id of what was written, in checkpoint format 2 */
  def commit(): Option[String]
}

private[redisstate] object TargetSink {

  def open(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      uid: Option[String],
      timeS: Option[Long],
      hadoopConf: Configuration): TargetSink =
    if (side.provider == Providers.HdfsBacked) new Scratch(spec, side, partition, hadoopConf)
    else {
      val provider = StoreReader.provider(spec, side, partition, hadoopConf)
      provider match {
        case ours: MovesState => new Filled(spec, ours, side, uid, timeS)
        case _ => new Empty(spec, provider, side.version - 1)
      }
    }

  /** Ours takes rows without keeping them. */
  private final class Filled(
      spec: StoreSpec,
      provider: MovesState,
      side: StateSide,
      uid: Option[String],
      timeS: Option[Long])
      extends TargetSink {
    private val fill = closing(provider) {
      val opened = provider.getStoreToFill(side.version - 1, uid, timeS)
      spec.tell((name, _, values, encoder, multiValue, internal) =>
        opened.createFamily(name, values, encoder, multiValue, internal))
      opened
    }

    override def put(key: UnsafeRow, value: UnsafeRow, family: String, expiryS: Long): Unit =
      fill.put(key, value, family, expiryS)
    override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
      fill.putList(key, values, family)

    override def commit(): Option[String] = {
      val pin = fill.commit()
      Option.when(side.conf.enableStateStoreCheckpointIds)(pin.uid)
    }

    override def close(): Unit =
      try fill.close()
      finally provider.close()
  }

  /** Spark's stores are written by the interface that operators have. */
  private sealed trait OfSpark extends TargetSink {
    protected def store: StateStore

    override def put(key: UnsafeRow, value: UnsafeRow, family: String, expiryS: Long): Unit =
      store.put(key, value, family)

    override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = {
      store.put(key, values.head, family)
      var i = 1
      while (i < values.length) {
        store.merge(key, values(i), family)
        i += 1
      }
    }
  }

  /** Sink for a provider that can begin at any version. */
  private final class Empty(spec: StoreSpec, provider: StateStoreProvider, before: Long)
      extends OfSpark {
    override protected val store: StateStore =
      closing(provider)(told(spec, EmptyStore.at(provider, before)))

    override def commit(): Option[String] = {
      store.commit()
      store.getStateStoreCheckpointInfo().stateStoreCkptId
    }

    override def close(): Unit = closeAll(store, provider)
  }

  /**
   * HDFSBackedStateStoreProvider begins with version 0 only. It writes version 1 in a folder of its
   * own; a delta that has only rows that were put has the format of a snapshot, and is renamed to
   * be that.
   */
  private final class Scratch(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      hadoopConf: Configuration)
      extends OfSpark {
    private val folder = scratchIn(new Path(side.stateRoot).getParent)
    private val there = side.copy(stateRoot = new Path(folder, "state").toString)
    private val provider = StoreReader.provider(spec, there, partition, hadoopConf)
    private val fs = folder.getFileSystem(hadoopConf)
    override protected val store: StateStore =
      closing(provider)(told(spec, provider.getStore(0, None)))

    override def commit(): Option[String] = {
      store.commit()
      val from = new Path(place(there), "1.delta")
      val to = new Path(place(side), s"${side.version}.snapshot")
      fs.mkdirs(to.getParent)
      fs.delete(to, false)
      if (!fs.rename(from, to)) {
        throw new UnavailableException(
          s"write $spec partition $partition: the file system did not rename $from to $to. Nothing " +
            "is lost: run the same command again.")
      }
      None
    }

    private def place(at: StateSide): Path =
      StateStoreId(at.stateRoot, spec.operator, partition, spec.name).storeCheckpointLocation()

    override def close(): Unit =
      try closeAll(store, provider)
      finally { fs.delete(folder, true); () }
  }

  private val ScratchPrefix = "_redis_state_scratch-"

  /** A new folder in a checkpoint, for what is written on the way. */
  def scratchIn(checkpoint: Path): Path =
    new Path(checkpoint, s"$ScratchPrefix${UUID.randomUUID()}")

  /** Returns whether a path is a scratch folder; a killed task leaves it. */
  def isScratch(path: Path): Boolean = path.getName.startsWith(ScratchPrefix)

  private def told(spec: StoreSpec, store: StateStore): StateStore = {
    spec.tell(store.createColFamilyIfAbsent(_, _, _, _, _, _))
    store
  }

  private def closing[A](provider: StateStoreProvider)(open: => A): A =
    try open
    catch {
      case e: Throwable =>
        provider.close()
        throw e
    }

  private def closeAll(store: StateStore, provider: StateStoreProvider): Unit =
    try if (!store.hasCommitted) store.abort()
    finally provider.close()
}
