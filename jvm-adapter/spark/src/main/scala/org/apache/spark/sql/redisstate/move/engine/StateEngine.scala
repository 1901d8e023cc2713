package org.apache.spark.sql.redisstate.move.engine

import scala.collection.mutable

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.{Partitioner, TaskContext}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.rdd.{RDD, ShuffledRDD}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.checkpoint.MarkerFile
import org.apache.spark.sql.redisstate.stores.MovesState
import org.apache.spark.util.SerializableConfiguration

import org.redisstate.core.errors.{
  ConfigException,
  FormatException,
  RedisStateException,
  StateLostException
}

/** Assigns rows to partitions, where the number of partitions changes. Used in tasks. */
trait RowRouting extends Serializable {
  def partitions: Int

  /** Returns the function of one store, for one thread. */
  def of(store: StoreSpec): StateEntry => Int
}

/** Callback on the driver for each finished partition. */
trait MoveWatcher {
  def partitionDone(spec: StoreSpec, digest: StateDigest): Unit
}

object MoveWatcher {
  val None: MoveWatcher = (_, _) => ()
}

/**
 * Moves the rows of stores between providers, as Spark jobs with a task for each partition. Rows
 * are read by the source's provider and written by the target's, both as Spark's own operators see
 * them; what was written is read again and compared.
 */
final class StateEngine(session: SparkSession, hadoopConf: Configuration) {
  import StateEngine._

  private val context = session.sparkContext
  private lazy val conf: Broadcast[SerializableConfiguration] =
    context.broadcast(new SerializableConfiguration(hadoopConf))

  /**
   * Moves stores one after the other.
   *
   * @param routing None leaves every row in its partition
   * @throws FormatException if what can be read of the target is not what was read of the source
   */
  def move(
      stores: Seq[StoreSpec],
      source: StateSide,
      target: StateSide,
      routing: Option[RowRouting],
      watcher: MoveWatcher): Seq[MovedStore] = ofNoQuery {
    withPositions(stores).map { case (spec, at) =>
      val moved = routing.fold(copy(spec, at, source, target, watcher)) { routing =>
        val (read, timeS) = readAll(spec, at, source, MoveWatcher.None)
        val routed = rows(spec, at, source, routing)
        MovedStore(spec, read, write(spec, at, target, routed, timeS, watcher))
      }
      checkEqual(moved)
      moved
    }
  }

  /** Returns the digests of stores. */
  def digests(
      stores: Seq[StoreSpec],
      side: StateSide,
      watcher: MoveWatcher): Seq[(StoreSpec, StateDigest)] = ofNoQuery {
    withPositions(stores).map { case (spec, at) => spec -> readAll(spec, at, side, watcher)._1 }
  }

  /** Returns the earliest time of a store's partitions; None where no rows of it expire. */
  def timeS(spec: StoreSpec, at: Int, side: StateSide): Option[Long] = ofNoQuery {
    val conf = this.conf
    run(spec.partitions) { partition =>
      read(spec, side, partition, side.uid(spec.operator, partition, at), conf.value.value)(_.timeS)
    }(_ => ()).flatten.minOption
  }

  /** Reads all rows, and asks of each where it belongs; what cannot be told fails. */
  def check(stores: Seq[StoreSpec], side: StateSide, routing: RowRouting): Unit = ofNoQuery {
    val conf = this.conf
    withPositions(stores).foreach { case (spec, at) =>
      run(spec.partitions) { partition =>
        read(spec, side, partition, side.uid(spec.operator, partition, at), conf.value.value) {
          reader =>
            val partitionOf = routing.of(spec)
            reader.entries.foreach(partitionOf(_))
        }
      }(_ => ())
    }
  }

  /**
   * Returns the digest of a store, and the earliest time of its partitions if rows of it expire: at
   * that time no row is expired that one of them shows.
   */
  private def readAll(
      spec: StoreSpec,
      at: Int,
      side: StateSide,
      watcher: MoveWatcher): (StateDigest, Option[Long]) = {
    val conf = this.conf
    val found = run(spec.partitions) { partition =>
      read(spec, side, partition, side.uid(spec.operator, partition, at), conf.value.value)(
        reader => reader.digest() -> reader.timeS)
    } { case (digest, _) => watcher.partitionDone(spec, digest) }
    found.map(_._1).foldLeft(StateDigest.Empty)(_ + _) -> found.flatMap(_._2).minOption
  }

  /** Rows of a store by the partition that they go to: as many partitions as the routing has. */
  def rows(spec: StoreSpec, at: Int, source: StateSide, routing: RowRouting): RDD[MovedRow] = {
    val conf = this.conf
    val placed = context.parallelize(0 until spec.partitions, spec.partitions)
      .mapPartitionsWithIndex { (partition, _) =>
        val reader =
          opened(
            spec,
            source,
            partition,
            source.uid(spec.operator, partition, at),
            conf.value.value)
        TaskContext.get().addTaskCompletionListener[Unit](_ => reader.close())
        val packer = new RowPacker(spec)
        val partitionOf = routing.of(spec)
        reader.entries.map(entry => partitionOf(entry) -> packer.pack(entry))
      }
    new ShuffledRDD[Int, MovedRow, MovedRow](placed, new AsNumbered(routing.partitions))
      .setSerializer(RowPacker.serializer)
      .values
  }

  /** Rows of some families of a store, in the partitions in which they lie. */
  def rowsInPlace(
      spec: StoreSpec,
      at: Int,
      source: StateSide,
      families: Set[Int]): RDD[MovedRow] = {
    val conf = this.conf
    context.parallelize(0 until spec.partitions, spec.partitions)
      .mapPartitionsWithIndex { (partition, _) =>
        val uid = source.uid(spec.operator, partition, at)
        val reader = opened(spec, source, partition, uid, conf.value.value)
        TaskContext.get().addTaskCompletionListener[Unit](_ => reader.close())
        val packer = new RowPacker(spec)
        reader.entries.filter(entry => families(entry.family)).map(packer.pack)
      }
  }

  /** Returns the digest of rows of a store. */
  def digestOf(spec: StoreSpec, rows: RDD[MovedRow]): StateDigest = ofNoQuery {
    val names = spec.families.map(_.name)
    collect(rows.mapPartitions { moved =>
      val (packer, sum) = (new RowPacker(spec), new DigestSum(names))
      moved.foreach(row => sum.add(packer.unpack(row)))
      Iterator(sum.result)
    })(_ => ()).foldLeft(StateDigest.Empty)(_ + _)
  }

  /**
   * Writes rows as the whole store.
   *
   * @param digest of the rows
   * @param timeS of the version, if its rows expire
   * @throws FormatException if something else can be read then
   */
  def replace(
      spec: StoreSpec,
      at: Int,
      target: StateSide,
      rows: RDD[MovedRow],
      digest: StateDigest,
      timeS: Option[Long],
      watcher: MoveWatcher): MovedStore = ofNoQuery {
    val moved = MovedStore(spec, digest, write(spec, at, target, rows, timeS, watcher))
    checkEqual(moved)
    moved
  }

  /** Writes each partition of `rows` as the partition of the store with its number. */
  private def write(
      spec: StoreSpec,
      at: Int,
      target: StateSide,
      rows: RDD[MovedRow],
      timeS: Option[Long],
      watcher: MoveWatcher): Seq[WrittenPartition] = {
    val conf = this.conf
    val written = rows.mapPartitionsWithIndex { (partition, moved) =>
      val packer = new RowPacker(spec)
      val uid = target.uid(spec.operator, partition, at)
      // The shuffle may give a task that runs again its rows in another order, and so other blocks.
      uid.flatMap(_ => earlier(spec, target, partition, uid, conf.value.value)) match {
        case Some(there) if there.uid == uid =>
          val sum = new DigestSum(spec.families.map(_.name))
          moved.foreach(row => sum.add(packer.unpack(row)))
          if (sum.result != there.digest) throw otherMove(spec, partition)
          Iterator(there)
        case _ =>
          Iterator(writePartition(spec, target, partition, uid, timeS, conf.value.value) { writer =>
            moved.foreach(row => writer.put(packer.unpack(row)))
          }._2)
      }
    }
    collect(written)(one => watcher.partitionDone(spec, one.digest))
  }

  private def copy(
      spec: StoreSpec,
      at: Int,
      source: StateSide,
      target: StateSide,
      watcher: MoveWatcher): MovedStore = {
    val conf = this.conf
    val done = run(spec.partitions) { partition =>
      copyPartition(
        spec,
        source,
        target,
        partition,
        source.uid(spec.operator, partition, at),
        target.uid(spec.operator, partition, at),
        conf.value.value)
    } { case (_, written) => watcher.partitionDone(spec, written.digest) }
    MovedStore(spec, done.map(_._1).foldLeft(StateDigest.Empty)(_ + _), done.map(_._2))
  }

  private def run[T: scala.reflect.ClassTag](partitions: Int)(task: Int => T)(
      done: T => Unit): Seq[T] =
    collect(context.parallelize(0 until partitions, partitions).map(task))(done)

  /** Collects results in the order of the partitions. */
  private def collect[T: scala.reflect.ClassTag](rdd: RDD[T])(done: T => Unit): Seq[T] = {
    val found = mutable.SortedMap.empty[Int, T]
    context.runJob(
      rdd,
      (_: TaskContext, results: Iterator[T]) => results.next(),
      rdd.partitions.indices,
      (partition: Int, result: T) => {
        found(partition) = result
        done(result)
      })
    found.values.toSeq
  }

  /**
   * Runs work without a query's id: a provider asks the task for its query, and lists its state
   * under it. Until the query runs there, no reader may find incomplete state.
   */
  private def ofNoQuery[T](work: => T): T = {
    val before = context.getLocalProperty(StreamExecution.QUERY_ID_KEY)
    context.setLocalProperty(StreamExecution.QUERY_ID_KEY, "")
    try work
    finally context.setLocalProperty(StreamExecution.QUERY_ID_KEY, before)
  }
}

object StateEngine {

  /**
   * Pairs each store with its position in its operator, which is that of its unique id in the
   * commit log.
   */
  def withPositions(stores: Seq[StoreSpec]): Seq[(StoreSpec, Int)] =
    stores.map(spec => spec -> stores.filter(_.operator == spec.operator).indexOf(spec))

  private def checkEqual(moved: MovedStore): Unit =
    if (moved.source != moved.target) {
      throw new FormatException(
        s"move ${moved.spec}: ${moved.source.rows} rows with the digest ${moved.source.text} were read, but " +
          s"the written state has ${moved.target.rows} rows with ${moved.target.text}. The query was not " +
          "switched: it continues as before. Please report this.")
    }

  private def copyPartition(
      spec: StoreSpec,
      source: StateSide,
      target: StateSide,
      partition: Int,
      uid: Option[String],
      uidThere: Option[String],
      hadoopConf: Configuration): (StateDigest, WrittenPartition) =
    read(spec, source, partition, uid, hadoopConf) { reader =>
      earlier(spec, target, partition, uidThere, hadoopConf) match {
        case Some(there) =>
          val wanted = reader.digest()
          if (wanted != there.digest || uidThere.exists(!there.uid.contains(_)))
            throw otherMove(spec, partition)
          wanted -> there
        case None =>
          writePartition(spec, target, partition, uidThere, reader.timeS, hadoopConf)(writer =>
            reader.entries.foreach(writer.put))
      }
    }

  /** @return what was given to the writer, and what can be read of it */
  private def writePartition(
      spec: StoreSpec,
      target: StateSide,
      partition: Int,
      wanted: Option[String],
      timeS: Option[Long],
      hadoopConf: Configuration)(fill: StoreWriter => Unit): (StateDigest, WrittenPartition) = {
    val writer = new StoreWriter(spec, target, partition, wanted, timeS, hadoopConf)
    val (given, uid) =
      try {
        fill(writer)
        val uid = writer.commit()
        writer.digest -> uid
      } finally writer.close()
    val found = read(spec, target, partition, uid, hadoopConf)(_.digest())
    if (found != given) checkEqual(MovedStore(
      spec,
      given,
      Seq(WrittenPartition(partition, found, uid, isNew = true))))
    given -> WrittenPartition(partition, found, uid, isNew = true)
  }

  /** Returns the partition that an interrupted move has left, if it is a whole version. */
  private def earlier(
      spec: StoreSpec,
      target: StateSide,
      partition: Int,
      uid: Option[String],
      hadoopConf: Configuration): Option[WrittenPartition] =
    target.provider match {
      case Providers.Redis if hasMarker(target, hadoopConf) =>
        inRedis(spec, target, partition, uid, hadoopConf)
      case _ => None
    }

  /** Returns whether the marker file exists; the first task that writes creates the file. */
  private def hasMarker(target: StateSide, hadoopConf: Configuration): Boolean =
    new MarkerFile(target.stateRoot, hadoopConf).find(expected = false).isDefined

  private def inRedis(
      spec: StoreSpec,
      target: StateSide,
      partition: Int,
      uid: Option[String],
      hadoopConf: Configuration): Option[WrittenPartition] = {
    val provider = StoreReader.provider(spec, target, partition, hadoopConf)
    val found =
      try {
        provider match {
          case ours: MovesState => Some(ours.getStoreToScan(target.version, None).opened.pin.uid)
          case _ => None
        }
      } catch { case e: Throwable if isAbsent(e) => None }
      finally provider.close()
    found.map { there =>
      val isWanted = uid.exists(_.replace("-", "") == there)
      val known =
        if (isWanted) uid else Option.when(target.conf.enableStateStoreCheckpointIds)(there)
      WrittenPartition(
        partition,
        read(spec, target, partition, known, hadoopConf)(_.digest()),
        known,
        isNew = false)
    }
  }

  /** Returns whether the error means that nothing of that version was ever written. */
  private def isAbsent(e: Throwable): Boolean =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).exists {
      case lost: StateLostException => !lost.isPurged
      case _ => false
    }

  private def otherMove(spec: StoreSpec, partition: Int) = new ConfigException(
    s"move $spec: partition $partition already exists with other rows, so an earlier move was of another " +
      "state. Nothing was changed. Remove its remains: run `redis-state purge --now` with the gen that the file state/_redis_state " +
      "of the target's folder names, then delete that file (for a new folder: the whole folder). Then " +
      "move again.")

  private def read[T](
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      uid: Option[String],
      hadoopConf: Configuration)(use: StoreReader => T): T = {
    val reader = opened(spec, side, partition, uid, hadoopConf)
    try use(reader)
    finally reader.close()
  }

  private def opened(
      spec: StoreSpec,
      side: StateSide,
      partition: Int,
      uid: Option[String],
      hadoopConf: Configuration): StoreReader =
    try new StoreReader(spec, side, partition, uid, hadoopConf)
    catch {
      case e: RedisStateException => throw e
      case e: Exception =>
        val folder = StateStoreId(
          side.stateRoot,
          spec.operator,
          partition,
          spec.name).storeCheckpointLocation(): Path
        throw new FormatException(
          s"read version ${side.version} of $spec in $folder: ${side.provider.split('.').last} cannot open it, see the " +
            "cause. The state is damaged or was removed. Nothing was changed.",
          e
        )
    }

  /** Sends a row to the partition whose number is the row's key. */
  private final class AsNumbered(override val numPartitions: Int) extends Partitioner {
    override def getPartition(key: Any): Int = key.asInstanceOf[Int]
  }
}
