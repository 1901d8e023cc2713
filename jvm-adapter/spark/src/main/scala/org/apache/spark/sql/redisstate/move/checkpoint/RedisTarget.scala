package org.apache.spark.sql.redisstate.move.checkpoint

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.{CheckpointIdentity, MarkerFile, PartitionsChange}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, StateQuota, StateSize}
import org.apache.spark.sql.redisstate.move.engine.{Providers, StateDigest, StateSide}
import org.apache.spark.sql.redisstate.query.StartCheck

import org.redisstate.core.backend.{Command, RedisBackend, Topology}
import org.redisstate.core.errors.FullException
import org.redisstate.core.protocol.RunRegistry
import org.redisstate.core.protocol.manifest.MemoryBound
import org.redisstate.core.protocol.names.GenClaims

/** Prepares Redis before tasks write there, for a move as the listener does it for a query. */
private[redisstate] object RedisTarget {

  /** Decides on the gen of the target, and registers the move as its run. The run of the query gives it id and name. */
  def begin(side: StateSide, hadoopConf: Configuration): Unit =
    if (side.provider == Providers.Redis) {
      val conf = optionsOf(side.conf)
      StartCheck.run(conf)
      val marker = new MarkerFile(side.stateRoot, hadoopConf)
      withBackend(conf) { backend =>
        val identity = new CheckpointIdentity(marker, new GenClaims(backend, conf.keyPrefix))
        identity.begin(side.runId, 0, stateful = true, conf.adoptMovedCheckpoint).foreach { gen =>
          val fields = Map(
            "path" -> marker.pathHash,
            "id" -> "",
            "name" -> "",
            "created" -> System.currentTimeMillis().toString)
          new RunRegistry(backend, conf.keyPrefix, gen)
            .register(side.runId, byDriver = true, above = 0, fields)
        }
      }
    }

  /** The partitions of before have moved: who would write there is fenced, and readers are told. */
  def leave(change: PartitionsChange, conf: RedisStateConf): Unit =
    withBackend(conf)(new RunRegistry(_, conf.keyPrefix, change.before).move(change.now.gen))

  /**
   * Checks that the server has room for the state. Rows of an interrupted move already count as
   * used.
   *
   * @param source where all rows come from; None if some come from elsewhere
   * @param digests what is to come; not asked for if the server has no limit, or room for the files
   *   of the source many times over, since to add them up takes as long as to move half of them
   * @throws FullException if the server's memory cannot hold it
   */
  def checkRoom(source: Option[StateSide], side: StateSide, hadoopConf: Configuration)(
      digests: => Seq[StateDigest]): Unit =
    if (side.provider == Providers.Redis) {
      free(optionsOf(side.conf)).filterNot(hasRoomForFiles(_, source, hadoopConf)).foreach { free =>
        val rows = digests.map(d => d.bytes + d.rows * RowBytes).sum - written(side, hadoopConf)
        // What is above the bound goes into files.
        val need = optionsOf(side.conf).redisMemory.fold(rows)(math.min(rows, _))
        if (free < need) {
          throw new FullException(
            s"move state to Redis: it may need $need bytes, and the server has $free bytes free below its maxmemory. " +
              "Nothing was changed. Raise maxmemory, or use a server with more memory.")
        }
      }
    }

  /**
   * Checks that a bound gives each partition its least share, so that the query can go on.
   *
   * @param partitions of all stores after the move
   * @throws org.redisstate.core.errors.ConfigException if the bound is too small
   */
  def checkBound(side: StateSide, partitions: Int): Unit =
    if (side.provider == Providers.Redis)
      optionsOf(side.conf).redisMemory.foreach(MemoryBound.shareOf(_, partitions))

  /**
   * Checks that the moved state is within the limits of its bytes, before anything switches to it:
   * its query could not write on.
   *
   * @throws org.redisstate.core.errors.QuotaException if a limit is reached
   */
  def checkQuota(side: StateSide, hadoopConf: Configuration): Unit =
    if (side.provider == Providers.Redis) {
      val conf = optionsOf(side.conf)
      if (conf.quota.isSet) {
        inGen(side, conf, hadoopConf) { (backend, gen) =>
          new StateQuota(backend, conf.keyPrefix, gen, conf.quota).checkNow(
            s"move state to ${side.stateRoot}",
            "The query was not switched: it continues as before. Raise the limit or remove state of other queries, then try " +
              "again: the state moved so far is kept."
          )
        }: Unit
      }
    }

  private def hasRoomForFiles(
      free: Long,
      source: Option[StateSide],
      hadoopConf: Configuration): Boolean =
    source.exists { from =>
      val folder = new Path(from.stateRoot)
      from.provider != Providers.Redis &&
      folder.getFileSystem(hadoopConf).getContentSummary(folder).getLength < free / FilesRatio
    }

  private def written(side: StateSide, hadoopConf: Configuration): Long = {
    val conf = optionsOf(side.conf)
    inGen(side, conf, hadoopConf) { (backend, gen) =>
      StateSize.of(backend, conf.keyPrefix, gen)._1
    }.getOrElse(0L)
  }

  /** Runs a function in the gen of the target; None if nothing was written yet. */
  private def inGen[T](side: StateSide, conf: RedisStateConf, hadoopConf: Configuration)(
      use: (RedisBackend, String) => T): Option[T] =
    new MarkerFile(side.stateRoot, hadoopConf).find(expected = false)
      .map(marker => withBackend(conf)(use(_, marker.gen)))

  private def withBackend[T](conf: RedisStateConf)(use: RedisBackend => T): T = {
    val backend = ExecutorRegistry.acquire(conf.connection)
    try use(backend)
    finally ExecutorRegistry.release(conf.connection)
  }

  /** Free bytes of the server; None without a limit, or in a cluster, whose nodes have one each. */
  private def free(conf: RedisStateConf): Option[Long] =
    if (conf.connection.url.topology == Topology.Cluster) None else freeOf(conf)

  private def freeOf(conf: RedisStateConf): Option[Long] =
    withBackend(conf) { backend =>
      val reply = backend.call("ask for the server's memory", Seq(Command("INFO", "memory"))).head
      val fields =
        new String(reply.asInstanceOf[Array[Byte]], "UTF-8").linesIterator.map(_.trim.split(":", 2))
          .collect { case Array(name, value) => name -> value }.toMap
      for {
        most <- fields.get("maxmemory").flatMap(_.toLongOption)
        used <- fields.get("used_memory").flatMap(_.toLongOption)
        if most > 0
      } yield most - used
    }

  /** Returns the options of this provider in a conf. */
  def optionsOf(conf: StateStoreConf): RedisStateConf =
    RedisStateConf(conf.sqlConfs, conf.minVersionsToRetain)

  /** Most bytes that a row takes in a block beside its own. */
  private val RowBytes = 16L

  /** Factor by which rows hardly ever exceed the size of their compressed files. */
  private val FilesRatio = 16L
}

/** Conf of a store in a query's task, without settings that a move does not need. */
private[redisstate] object MoveConf {

  /**
   * Makes RocksDB look up the key of each row that is put, to count rows. A move counts them
   * anyway, and where the number is missing the query's first load counts once.
   */
  private val CountsRows = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"

  def of(
      session: SQLConf,
      checkpoint: QueryCheckpoint,
      provider: String,
      more: Map[String, String]): StateStoreConf = {
    val conf = session.clone()
    (checkpoint.conf ++ more).foreach { case (key, value) => conf.setConfString(key, value) }
    conf.setConfString(SQLConf.STATE_STORE_PROVIDER_CLASS.key, provider)
    conf.setConfString(CountsRows, "false")
    conf.setConfString(
      SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key,
      if (checkpoint.hasIds) "2" else "1")
    StateStoreConf(conf)
  }
}
