package org.apache.spark.sql.redisstate.move

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileUtil, Path}
import org.json4s.{JObject, JString, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreConf, StateStoreId}
import org.apache.spark.sql.redisstate.checkpoint.{QueryLogs, TextFile}
import org.apache.spark.sql.redisstate.move.bootstrap.{Bootstrap, StateRows}
import org.apache.spark.sql.redisstate.move.checkpoint.{
  CheckpointFiles,
  MoveConf,
  QueryCheckpoint,
  RedisTarget,
  StateCatalog,
  StoreSchema
}
import org.apache.spark.sql.redisstate.move.engine.{
  MoveWatcher,
  MovedStore,
  Named,
  Providers,
  RowRouting,
  StateEngine,
  StateSide,
  StoreSpec,
  TargetSink
}
import org.apache.spark.sql.redisstate.move.rescale.Rescale

import org.redisstate.core.errors.ConfigException

/**
 * Makes a new checkpoint from one of another provider, which stays unchanged. The new one becomes a
 * checkpoint in the last step, which replaces its unreadable `metadata` file; a failure before that
 * leaves a folder that no query starts from, and that the same move continues.
 *
 * @param to a folder that does not exist, or one that this same move was interrupted in
 * @param provider class of the target
 * @param targetConf confs of the target that the session does not have
 * @param partitions of every operator from now on; None leaves them as they are
 * @param state rows that become the state of an operator, in place of what it has or beside it
 */
final class CheckpointMove(
    session: SparkSession,
    from: String,
    to: String,
    provider: String,
    targetConf: java.util.Map[String, String],
    partitions: Option[Int],
    state: Option[StateRows]) {
  import CheckpointMove._

  def this(
      session: SparkSession,
      from: String,
      to: String,
      provider: String,
      targetConf: java.util.Map[String, String]) =
    this(session, from, to, provider, targetConf, None, None)

  /** Moves to the provider that the checkpoint has, with another number of partitions. */
  def this(
      session: SparkSession,
      from: String,
      to: String,
      targetConf: java.util.Map[String, String],
      partitions: Int) =
    this(
      session,
      from,
      to,
      Providers.Redis,
      targetConf,
      Some(partitions),
      None)

  /**
   * Moves with rows that become the state of an operator.
   *
   * @param operator below 0 for the one that there is
   */
  def this(
      session: SparkSession,
      from: String,
      to: String,
      provider: String,
      targetConf: java.util.Map[String, String],
      rows: java.util.Map[String, Dataset[_]],
      operator: Long,
      merges: Boolean) =
    this(
      session,
      from,
      to,
      provider,
      targetConf,
      None,
      Some(StateRows(Option.when(operator >= 0)(operator), rows.asScala.toMap, merges)))

  private val hadoopConf: Configuration = session.sessionState.newHadoopConf()
  private val source = qualified(from)
  private val target = qualified(to)
  private val files = CheckpointFileManager.create(target, hadoopConf)
  private val small = new CheckpointFiles(hadoopConf)
  private val engine = new StateEngine(session, hadoopConf)
  private val counters = new MoveCounters

  /** Store that gets the given rows, once the checkpoint was read. */
  private var filled: Option[Bootstrap] = None

  /** Id of this call: of two calls into one folder only the one that began last may finish. */
  private val own = UUID.randomUUID().toString

  /** Progress of the move; for any thread. */
  def progress: MoveCounters = counters

  /** Checks everything and reads the source; changes nothing. */
  def dryRun(): MoveReport = Named.errors {
    val (checkpoint, stores) = checked()
    val side = sourceOf(checkpoint)
    counters.expect(others(stores).map(_.partitions).sum)
    rescaleOf(checkpoint, stores).foreach { rescale =>
      engine.check(rescale.spread, side, rescale.routing)
    }
    val found =
      engine.digests(others(partitioned(checkpoint, stores)), side, counters) ++
        filled.map(own => own.spec -> own.digest)
    RedisTarget.checkRoom(None, targetOf(checkpoint), hadoopConf)(found.map(_._2))
    MoveReport(
      checkpoint,
      provider,
      found.map { case (spec, digest) => MovedStore(spec, digest, Nil) })
  }

  /** Moves everything. May be called again after whatever happened. */
  def run(): MoveReport = Named.errors {
    val (checkpoint, stores) = checked()
    val there = targetOf(checkpoint)
    val from = Option.when(filled.isEmpty)(sourceOf(checkpoint))
    RedisTarget.checkRoom(from, there, hadoopConf) {
      engine.digests(others(stores), sourceOf(checkpoint), MoveWatcher.None)
        .map(_._2) ++ filled.map(_.digest)
    }
    // Rows that nobody can take fail here, before anything is written.
    filled.foreach(_.digest)
    begin(checkpoint)
    copyFiles(checkpoint, stores)
    counters.expect(partitionsAfter(checkpoint, stores))
    RedisTarget.begin(there, hadoopConf)
    val moved = moveAll(checkpoint, stores, there)
    RedisTarget.checkQuota(there, hadoopConf)
    finish(checkpoint, moved)
    MoveReport(checkpoint, provider, moved)
  }

  private def moveAll(
      checkpoint: QueryCheckpoint,
      stores: Seq[StoreSpec],
      there: StateSide): Seq[MovedStore] = {
    def move(some: Seq[StoreSpec], routing: Option[RowRouting]) =
      engine.move(some, sourceOf(checkpoint), there, routing, counters)
    rescaleOf(checkpoint, stores).fold(move(others(stores), None)) { rescale =>
      move(rescale.single, None) ++ move(rescale.spread, Some(rescale.routing))
    } ++ filled.map(_.write(there, counters))
  }

  /** Returns the stores that keep their rows. */
  private def others(stores: Seq[StoreSpec]): Seq[StoreSpec] = filled.fold(stores)(_.others)

  private def rescaleOf(checkpoint: QueryCheckpoint, stores: Seq[StoreSpec]): Option[Rescale] =
    partitions.map(Rescale(checkpoint, stores, _))

  private def partitionsAfter(checkpoint: QueryCheckpoint, stores: Seq[StoreSpec]): Int =
    rescaleOf(checkpoint, stores).fold(stores.map(_.partitions).sum)(_.after)

  /** Returns the stores with their present partitions. */
  private def partitioned(checkpoint: QueryCheckpoint, stores: Seq[StoreSpec]): Seq[StoreSpec] =
    rescaleOf(checkpoint, stores).fold(stores)(_.stores)

  private def checked(): (QueryCheckpoint, Seq[StoreSpec]) = {
    val checkpoint = QueryCheckpoint.read(source, hadoopConf)
    if (checkpoint.folder == target) throw refused("it is the folder that the state comes from")
    val stores = StateCatalog.read(checkpoint, hadoopConf)
    filled = state.map(
      Bootstrap(checkpoint, stores, _, engine, sourceOf(checkpoint), targetOf(checkpoint)))
    checkTarget(checkpoint)
    Providers.checkTarget(provider, stores, checkpoint.hasIds)
    RedisTarget.checkBound(targetOf(checkpoint), partitionsAfter(checkpoint, stores))
    (checkpoint, stores)
  }

  private def checkTarget(checkpoint: QueryCheckpoint): Unit =
    if (files.exists(target) && files.list(target).nonEmpty) {
      TextFile.read(new Path(target, Record), hadoopConf) match {
        case Some(text) if isOf(text, checkpoint) =>
          val metadata = TextFile.read(new Path(target, Metadata), hadoopConf)
          if (metadata.exists(_ != NotYet))
            throw refused("that move was finished. Start the query with the new folder")
        case Some(_) => throw refused(
            "a move of another checkpoint, batch or target was interrupted in it. Delete the folder and begin again")
        case None if hasOnlyBegun => ()
        case None => throw refused("it has files already. Name a folder that does not exist")
      }
    }

  /** Returns whether a move ended in its first steps, before it wrote its record. */
  private def hasOnlyBegun: Boolean = {
    val (metadata, others) =
      list(target).filterNot(isTemporary).partition(_.getName == Metadata)
    others.isEmpty &&
    metadata.forall(TextFile.read(_, hadoopConf).contains(NotYet))
  }

  private def refused(why: String) = new ConfigException(
    s"move the state of $source to $target: $why. Nothing was changed.")

  private def sourceOf(checkpoint: QueryCheckpoint): StateSide = StateSide(
    checkpoint.stateRoot.toString,
    checkpoint.version,
    storeConf(checkpoint, checkpoint.provider, Map.empty),
    UUID.randomUUID().toString,
    checkpoint.uids)

  private def targetOf(checkpoint: QueryCheckpoint): StateSide = StateSide(
    new Path(target, "state").toString,
    checkpoint.version,
    storeConf(checkpoint, provider, targetConf.asScala.toMap),
    UUID.randomUUID().toString,
    Map.empty)

  private def storeConf(
      checkpoint: QueryCheckpoint,
      provider: String,
      more: Map[String, String]): StateStoreConf =
    MoveConf.of(session.sessionState.conf, checkpoint, provider, more)

  /** Makes the folder one that no query starts from. */
  private def begin(checkpoint: QueryCheckpoint): Unit = {
    // All rows may have been read since the first look, and another call may have finished.
    checkTarget(checkpoint)
    files.mkdirs(target)
    // Before all else: a query that is started with the folder would take it for a new one.
    write(new Path(target, Metadata), NotYet)
    write(
      new Path(target, Record),
      compact(render(record(checkpoint).merge(JObject("id" -> JString(own))))))
    // A log that shows the batch would tell a writer that others have gone on from it.
    Seq(QueryLogs.Offsets, QueryLogs.Commits).foreach(log =>
      files.delete(new Path(target, log)))
    list(target).filter(isTemporary).foreach(files.delete)
    removeScratch()
  }

  /** Record that all moves into one folder have to agree on. */
  private def record(checkpoint: QueryCheckpoint): JObject =
    ("from" -> checkpoint.folder.toString) ~ ("batch" -> checkpoint.batch) ~
      ("to" -> provider) ~ ("partitions" -> partitions) ~ ("given" -> filled.map(_.record))

  private def isOf(text: String, checkpoint: QueryCheckpoint): Boolean =
    fieldsOf(text).exists(_.removeField(_._1 == "id") == parse(compact(render(record(checkpoint)))))

  private def fieldsOf(text: String): Option[JValue] = Try(parse(text): JValue).toOption

  private def checkOwn(): Unit =
    if (!TextFile.read(new Path(target, Record), hadoopConf).flatMap(fieldsOf)
        .exists(_ \ "id" == JString(own))) {
      throw stopped(
        "another call of the same move started in the new folder meanwhile. Wait until that call ends, " +
          "or stop it and begin again")
    }

  private def checkNoFurtherBatch(checkpoint: QueryCheckpoint): Unit =
    if (!QueryLogs.batches(source, QueryLogs.Offsets, hadoopConf).maxOption
        .contains(checkpoint.batch)) {
      throw stopped(
        "its query planned a further batch meanwhile. Stop the query, delete the new folder and begin again")
    }

  /** After something was written, and before the new folder is a checkpoint. */
  private def stopped(why: String) = new ConfigException(
    s"move the state of $source to $target: $why. The old folder is unchanged, and no query starts from the new one.")

  /** Removes the scratch folders of tasks whose executor was killed. */
  private def removeScratch(): Unit =
    list(target).filter(TargetSink.isScratch).foreach(files.delete)

  /**
   * Copies all files but the state and Spark's logs; of the operators those that describe their
   * stores.
   */
  private def copyFiles(checkpoint: QueryCheckpoint, stores: Seq[StoreSpec]): Unit = {
    list(source).filterNot(path => Skipped(path.getName) || TargetSink.isScratch(path)).foreach {
      path =>
        copy(path, new Path(target, path.getName))
    }
    stores.map(_.operator).distinct.foreach { operator =>
      val here = new Path(checkpoint.stateRoot, operator.toString)
      val there = new Path(new Path(target, "state"), operator.toString)
      list(here).filter(path => OfOperators(path.getName)).foreach { path =>
        copy(path, new Path(there, path.getName))
      }
      small.describe(new Path(target, "state"), operator, partitions)
    }
    stores.foreach { spec =>
      val schemas = Seq(source, target).map { folder =>
        StoreSchema.file(StateStoreId(
          new Path(folder, "state").toString,
          spec.operator,
          StateStore.PARTITION_ID_TO_CHECK_SCHEMA,
          spec.name))
      }
      if (files.exists(schemas.head)) copy(schemas.head, schemas.last)
    }
  }

  private def finish(checkpoint: QueryCheckpoint, moved: Seq[MovedStore]): Unit = {
    val uids = moved.groupBy(_.spec.operator).map { case (operator, stores) =>
      val ofStores = stores.map(_.partitions.map(_.uid.getOrElse("")))
      operator -> ofStores.head.indices.map(partition => ofStores.map(_(partition)))
    }
    checkOwn()
    val before = checkpoint.batch - 1
    // Spark looks at the entry before the last one when it starts.
    copyIfThere(s"${QueryLogs.Offsets}/$before")
    copyIfThere(s"${QueryLogs.Commits}/$before")
    write(
      new Path(target, s"${QueryLogs.Offsets}/${checkpoint.batch}"),
      checkpoint.offsetsWith(provider, partitions).text)
    write(
      new Path(target, s"${QueryLogs.Commits}/${checkpoint.batch}"),
      checkpoint.commitWith(uids).text)
    removeScratch()
    checkNoFurtherBatch(checkpoint)
    checkOwn()
    write(
      new Path(target, Metadata),
      TextFile.read(new Path(source, Metadata), hadoopConf).get)
    files.delete(new Path(target, Record))
  }

  private def copyIfThere(name: String): Unit =
    TextFile.read(new Path(source, name), hadoopConf).foreach(write(
      new Path(target, name),
      _))

  private def write(file: Path, text: String): Unit = small.write(file, text)

  private def copy(from: Path, to: Path): Unit = {
    val there = to.getFileSystem(hadoopConf)
    there.delete(to, true)
    there.mkdirs(to.getParent)
    FileUtil.copy(from.getFileSystem(hadoopConf), from, there, to, false, true, hadoopConf)
    ()
  }

  private def list(folder: Path): Seq[Path] =
    if (files.exists(folder)) files.list(folder).toSeq.map(_.getPath) else Nil

  private def qualified(path: String): Path = {
    val named = new Path(path)
    named.getFileSystem(hadoopConf).makeQualified(named)
  }
}

private[redisstate] object CheckpointMove {

  private val Metadata = "metadata"
  private val Record = "_redis_state_move"
  private val Skipped = Set("state", QueryLogs.Offsets, QueryLogs.Commits, Metadata, Record)
  private val OfOperators = Set("_metadata", "_stateSchema")

  /** Returns whether a killed call was writing a file, or Hadoop wrote it beside one. */
  private def isTemporary(path: Path): Boolean =
    CheckpointFiles.isAside(path) || path.getName.startsWith(".") &&
      (path.getName.endsWith(".tmp") || path.getName.endsWith(".crc"))

  /** Spark's parser of JSON shows the beginning when it refuses it. */
  private val NotYet =
    "This_checkpoint_is_not_complete__run_the_same_redis-state_migrate_again_or_delete_the_folder"
}
