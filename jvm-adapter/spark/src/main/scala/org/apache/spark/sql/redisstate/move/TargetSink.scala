package org.apache.spark.sql.redisstate.move

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.stores.OpensEmpty

import org.redisstate.core.errors.UnavailableException

/** How a provider is given a version that it did not build from the ones before. */
private[redisstate] sealed trait TargetSink extends AutoCloseable {
  def store: StateStore

  /** @return Spark's unique id of what was written, in checkpoint format 2 */
  def commit(): Option[String]
}

private[redisstate] object TargetSink {

  def open(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      uid: Option[String],
      hadoopConf: Configuration): TargetSink =
    if (side.provider == Providers.HdfsBacked) new Scratch(spec, side, partition, hadoopConf)
    else new Empty(StoreReader.provider(spec, side, partition, hadoopConf), side.version - 1, uid)

  /** A provider that begins at any version. */
  private final class Empty(provider: StateStoreProvider, before: Long, uid: Option[String])
      extends TargetSink {
    override val store: StateStore = closing(provider) {
      provider match {
        case ours: OpensEmpty => ours.getEmptyStore(before, uid)
        case sparks => EmptyStore.at(sparks, before)
      }
    }

    override def commit(): Option[String] = {
      store.commit()
      store.getStateStoreCheckpointInfo().stateStoreCkptId
    }

    override def close(): Unit = closeAll(store, provider)
  }

  /**
   * HDFSBackedStateStoreProvider begins with version 0 only. It writes version 1 in a folder of its own; a delta that has
   * only rows that were put has the format of a snapshot, and is renamed to be that.
   */
  private final class Scratch(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      hadoopConf: Configuration)
      extends TargetSink {
    private val folder = scratchIn(new Path(side.stateRoot).getParent)
    private val there = side.copy(stateRoot = new Path(folder, "state").toString)
    private val provider = StoreReader.provider(spec, there, partition, hadoopConf)
    private val fs = folder.getFileSystem(hadoopConf)
    override val store: StateStore = closing(provider)(provider.getStore(0, None))

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

  /** Whether it is such a folder; who was killed leaves it. */
  def isScratch(path: Path): Boolean = path.getName.startsWith(ScratchPrefix)

  private def closing(provider: StateStoreProvider)(open: => StateStore): StateStore =
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
