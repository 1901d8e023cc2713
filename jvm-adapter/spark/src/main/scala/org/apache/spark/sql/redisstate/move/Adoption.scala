package org.apache.spark.sql.redisstate.move

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.redisstate.move.checkpoint.{
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
  StateSide
}

import org.redisstate.core.errors.{InternalException, RedisStateException, UnavailableException}

/**
 * Moves the state of a checkpoint of another provider into Redis and switches the checkpoint, before its query begins (option `adopt`).
 * The state of the last batch N is written as the version that it has; the switch is one file, `offsets/<N+1>`, which is created only if
 * it is absent: it plans a batch without new data, with this provider. Spark carries that batch out and logs it. Until
 * the file is there the checkpoint is the old one.
 */
private[redisstate] final class Adoption(
    session: SparkSession,
    folder: Path,
    hadoopConf: Configuration)
    extends Logging {

  /**
   * @throws RedisStateException why it cannot be; nothing of the checkpoint was changed that its old
   *   provider looks at
   */
  def run(): Unit =
    try Named.errors(adopt())
    catch {
      case e: RedisStateException => throw e
      case e: Exception =>
        throw new InternalException(
          s"adopt the state of $folder: ${e.getMessage} The checkpoint is unchanged: without the option adopt the query continues with " +
            "its old provider.",
          e)
    }

  private def adopt(): Unit = {
    val began = System.nanoTime()
    val checkpoint = QueryCheckpoint.read(folder, hadoopConf)
    val stores = StateCatalog.read(checkpoint, hadoopConf)
    QueryCheckpoint.checkEmptyBatch(
      stores,
      s"adopt the state of $folder",
      "Use `redis-state migrate`, which makes a new folder, or start the query without the option adopt.")
    val conf = session.sessionState.conf
    val source = StateSide(
      checkpoint.stateRoot.toString,
      checkpoint.version,
      MoveConf.of(conf, checkpoint, checkpoint.provider, Map.empty),
      UUID.randomUUID().toString,
      checkpoint.uids
    )
    // The commit log names the versions by the ids that they have: they keep them.
    val target = source.copy(
      conf = MoveConf.of(conf, checkpoint, Providers.Redis, Map.empty),
      runId = UUID.randomUUID().toString)
    RedisTarget.checkBound(target, stores.map(_.partitions).sum)
    logInfo(
      s"Moving the state of $folder after batch ${checkpoint.batch} from ${checkpoint.provider} to Redis: " +
        s"${stores.map(_.partitions).sum} partitions")
    val engine = new StateEngine(session, hadoopConf)
    RedisTarget.checkRoom(Some(source), target, hadoopConf)(
      engine.digests(stores, source, MoveWatcher.None).map(_._2))
    RedisTarget.begin(target, hadoopConf)
    val moved = engine.move(stores, source, target, None, MoveWatcher.None)
    RedisTarget.checkQuota(target, hadoopConf)
    switch(checkpoint)
    moved.foreach(one =>
      logInfo(s"Moved ${one.spec}: ${one.source.rows} rows, digest ${one.source.text}"))
    logInfo(s"Moved the state of $folder in ${(System.nanoTime() - began) / 1000000L} ms")
  }

  private def switch(checkpoint: QueryCheckpoint): Unit =
    if (!NextBatch.plan(
        checkpoint,
        checkpoint.emptyBatchWith(Providers.Redis, System.currentTimeMillis()),
        hadoopConf)) {
      throw new UnavailableException(
        s"adopt the state of $folder: another run of the query planned batch ${checkpoint.batch + 1} meanwhile. " +
          "Stop that run, then start this one again.")
    }
}
