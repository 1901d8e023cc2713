package org.apache.spark.sql.redisstate.move.rescale

import java.util.UUID

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.JsonDSL._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.redisstate.checkpoint.{
  CheckpointIdentity,
  Marker,
  MarkerFile,
  QueryLogs,
  Rescaled
}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.move.checkpoint.{
  CheckpointFiles,
  MoveConf,
  NextBatch,
  QueryCheckpoint,
  RedisTarget,
  StateCatalog
}
import org.apache.spark.sql.redisstate.move.engine.{
  MoveWatcher,
  Named,
  Providers,
  StateEngine,
  StateSide,
  TargetSink
}

import org.redisstate.core.errors._
import org.redisstate.core.places.BlockFileName

/**
 * Changes the number of partitions of a checkpoint's state in place, before its query begins
 * (option `rescaleTo`). The rows after the last batch N go into a new gen, which a marker file
 * announces. The switch is one file, `offsets/<N+1>`, which is created only if it is absent: it
 * plans a batch without new data with the new number, and names the gen. Spark carries that batch
 * out and logs it. Until that file exists the checkpoint is the old one (docs/format.md, section
 * 9).
 */
private[redisstate] final class RescaleAtStart(
    session: SparkSession,
    folder: Path,
    hadoopConf: Configuration)
    extends Logging {
  private val marker = new MarkerFile(new Path(folder, "state").toString, hadoopConf)
  private val files = new CheckpointFiles(hadoopConf)

  /**
   * Finishes a change that was interrupted, and makes the one that is asked for.
   *
   * @throws RedisStateException why the query cannot go on as it is, or the number cannot be changed; the state is as it was
   */
  def run(): Unit = {
    marker.open(version = 0, conf.adoptMovedCheckpoint)
    orNamed(
      "finish the change of",
      "Start the query once more, with the option rescaleTo or without it.") {
      finish()
      marker.undecided().foreach(change => marker.decide(change.now))
      checkNotBefore()
    }
    conf.rescaleTo.foreach { partitions =>
      orNamed(
        "change",
        "If the checkpoint already has the new number, the next start continues with it. If not, nothing was changed, " +
          "and without the option rescaleTo the query continues with its present partitions."
      )(rescaleTo(partitions))
    }
  }

  private def orNamed(attempted: String, advice: String)(work: => Unit): Unit =
    try Named.errors(work)
    catch {
      case e: RedisStateException => throw e
      case e: Exception =>
        throw new InternalException(
          s"$attempted the number of partitions of $folder: ${e.getMessage} $advice",
          e)
    }

  private def conf: RedisStateConf = {
    val sqlConf = session.sessionState.conf
    RedisStateConf(sqlConf.getAllConfs, sqlConf.minBatchesToRetain)
  }

  /** The gen has the state in its own number of partitions: with the logs of before, rows would be looked for in the wrong ones. */
  private def checkNotBefore(): Unit =
    for {
      now <- marker.read()
      rescaled <- now.rescaled
      newest = planned.maxOption.getOrElse(-1L)
      if newest < rescaled.batch
    } throw new ConfigException(
      s"start the query of $folder: its logs were set back to batch $newest, but batch ${rescaled.batch} changed its " +
        s"number of partitions to ${rescaled.partitions}. The state in Redis cannot serve earlier batches. Restore the log entries " +
        "from that batch on.")

  private def planned: Seq[Long] = QueryLogs.batches(folder, QueryLogs.Offsets, hadoopConf)

  private def rescaleTo(partitions: Int): Unit =
    if (planned.nonEmpty) {
      val newest = planned.max
      if (QueryLogs.batches(folder, QueryLogs.Commits, hadoopConf).contains(newest)) {
        val checkpoint = QueryCheckpoint.read(folder, hadoopConf)
        if (!checkpoint.partitions.contains(partitions)) rescale(checkpoint, partitions)
      } else {
        val of = QueryLogs.metadata(folder, QueryLogs.Offsets, newest, hadoopConf)
        if (QueryCheckpoint.partitionsIn(of).forall(_ != partitions)) {
          logWarning(
            s"The number of partitions of $folder is not changed to $partitions now: its last batch, $newest, is planned but not " +
              "committed, and has to run with the present number. Wait until it ends, then stop the query and start it once more.")
        }
      }
    }

  private def rescale(checkpoint: QueryCheckpoint, partitions: Int): Unit = {
    val began = System.nanoTime()
    adoptMoved(checkpoint)
    val old = marker.read().getOrElse(throw marker.missing("change the partitions of")).gen
    val stores = StateCatalog.read(checkpoint, hadoopConf)
    QueryCheckpoint.checkEmptyBatch(
      stores,
      s"change the number of partitions of $folder",
      "Use `redis-state rescale`, which makes a new folder, or start the query without the option rescaleTo."
    )
    val plan = Rescale(checkpoint, stores, partitions)
    val sqlConf = session.sessionState.conf
    val source = StateSide(
      checkpoint.stateRoot.toString,
      checkpoint.version,
      MoveConf.of(sqlConf, checkpoint, Providers.Redis, Map.empty),
      UUID.randomUUID().toString,
      checkpoint.uids)
    val scratch = TargetSink.scratchIn(folder)
    val target = source.copy(
      stateRoot = new Path(scratch, "state").toString,
      conf = MoveConf.of(sqlConf, checkpoint, Providers.Redis, ownFolder(checkpoint)),
      runId = UUID.randomUUID().toString,
      uids = checkpoint.uidsFor(partitions)
    )
    RedisTarget.checkBound(target, plan.after)
    logInfo(
      s"Changing the number of partitions of $folder after batch ${checkpoint.batch} from ${checkpoint.partitions.get} to $partitions")
    val engine = new StateEngine(session, hadoopConf)
    val gen = CheckpointIdentity.genOf(target.runId)
    RedisTarget.checkRoom(Some(source), target, hadoopConf)(
      engine.digests(plan.stores, source, MoveWatcher.None).map(_._2))
    logWarning(
      s"The state of $folder is written for $partitions partitions as gen $gen. If this start does not end, remove what it has " +
        s"written: redis-state purge --gen $gen")
    val moved =
      try {
        val there = new MarkerFile(target.stateRoot, hadoopConf)
        there.create(Marker(gen, there.pathHash))
        RedisTarget.begin(target, hadoopConf)
        val moved = engine.move(plan.single, source, target, None, MoveWatcher.None) ++
          engine.move(plan.spread, source, target, Some(plan.routing), MoveWatcher.None)
        RedisTarget.checkQuota(target, hadoopConf)
        switch(checkpoint, gen, partitions)
        moved
      } catch {
        case e: Throwable =>
          tellOfRest(gen, partitions)
          throw e
      } finally Try(files.delete(scratch))
    finish()
    moved.foreach(one =>
      logInfo(s"Moved ${one.spec}: ${one.source.rows} rows, digest ${one.source.text}"))
    logWarning(
      s"$folder has $partitions partitions from batch ${checkpoint.batch + 1} on, after ${(System.nanoTime() - began) / 1000000L} " +
        s"ms. The previous state takes memory until it is removed: redis-state purge --gen $old")
  }

  /** Returns the option by which block files go into this checkpoint, and not into its scratch folder. */
  private def ownFolder(checkpoint: QueryCheckpoint): Map[String, String] =
    if (!conf.needsFiles || conf.placesFolder.nonEmpty) Map.empty
    else
      Map(s"${RedisStateConf.Prefix}placesFolder" -> new Path(
        checkpoint.stateRoot,
        BlockFileName.Folder).toString)

  private def tellOfRest(gen: String, partitions: Int): Unit =
    if (Try(marker.undecided().forall(_.now.gen != gen)).getOrElse(false))
      logWarning(
        s"The state written for $partitions partitions of $folder takes memory in Redis until it is removed: " +
          s"redis-state purge --gen $gen")
    else
      logWarning(
        s"$folder may already have $partitions partitions, whose state in Redis is gen $gen. Start the query once more, and do not purge " +
          s"that gen unless `redis-state doctor --checkpoint $folder` names another gen.")

  private def adoptMoved(checkpoint: QueryCheckpoint): Unit =
    marker.open(checkpoint.version, conf.adoptMovedCheckpoint)
      .foreach(found => if (found.pathHash != marker.pathHash) marker.adopt())

  private def switch(checkpoint: QueryCheckpoint, gen: String, partitions: Int): Unit = {
    val batch = checkpoint.batch + 1
    if (!NextBatch.isFree(checkpoint, hadoopConf)) throw overtaken(batch)
    marker.announce(gen, Rescaled(batch, partitions))
    val entry =
      checkpoint.emptyBatchWith(Providers.Redis, System.currentTimeMillis(), Some(partitions))
    val named = entry.copy(metadata =
      QueryCheckpoint.merged(entry.metadata, "conf" -> (MarkerFile.GenConf -> gen)))
    if (!NextBatch.plan(checkpoint, named, hadoopConf)) throw overtaken(batch)
    // Where a file that is there can be replaced, another run may have announced its own in this one's place.
    marker.announce(gen, Rescaled(batch, partitions))
  }

  private def overtaken(batch: Long) = new UnavailableException(
    s"change the number of partitions of $folder: another run of the query planned batch $batch meanwhile. " +
      "Stop that run, then start this one again.")

  /**
   * Completes what Spark needs before it carries out the planned batch; every step may be repeated.
   */
  private def finish(): Unit = marker.undecided().foreach { change =>
    val rescaled = change.now.rescaled.get
    // First of all: from now on nobody writes or reads on in the partitions of before, whatever files a cache still shows.
    RedisTarget.leave(change, conf)
    val before = rescaled.batch - 1
    val offsets = new Path(folder, s"${QueryLogs.Offsets}/$before")
    val commit = new Path(folder, s"${QueryLogs.Commits}/$before")
    Seq(offsets, commit).foreach(files.recover)
    if (!QueryLogs.batches(folder, QueryLogs.Commits, hadoopConf).contains(rescaled.batch)) {
      val checkpoint = QueryCheckpoint.at(folder, before, hadoopConf)
      // Since 4.2 Spark does not run a batch whose number differs from that of the one before.
      if (!checkpoint.partitions.contains(rescaled.partitions)) {
        files.write(
          offsets,
          checkpoint.offsetsWith(Providers.Redis, Some(rescaled.partitions)).text)
      }
      val uids = checkpoint.uidsFor(rescaled.partitions)
      if (uids != checkpoint.uids) {
        files.write(commit, checkpoint.commitWith(uids).text)
      }
    }
    val stateRoot = new Path(folder, "state")
    files.numbered(stateRoot).foreach { operator =>
      files.describe(stateRoot, operator, Some(rescaled.partitions))
      val partitions = new Path(stateRoot, operator.toString)
      // Spark's state reader takes the folders for the partitions that there are.
      files.numbered(partitions).filter(_ >= rescaled.partitions)
        .foreach(partition => files.delete(new Path(partitions, partition.toString)))
    }
  }
}
