package org.apache.spark.sql.redisstate.move.bootstrap

import java.util.Arrays

import org.json4s.JObject
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.Partitioner
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.move.checkpoint.{QueryCheckpoint, RedisTarget, StateCatalog}
import org.apache.spark.sql.redisstate.move.engine.{
  MoveWatcher,
  MovedRow,
  MovedStore,
  Named,
  StateDigest,
  StateEngine,
  StateSide,
  StoreSpec
}

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.local.Expiry

/**
 * Rows that a caller gives for the state of an operator.
 *
 * @param operator None for the one that there is
 * @param frames by state variable; of an operator without variables by an empty name
 * @param merges whether rows of other keys stay
 */
private[redisstate] final case class StateRows(
    operator: Option[Long],
    frames: Map[String, Dataset[_]],
    merges: Boolean)

/**
 * Given rows that replace the state of one store; all other stores keep theirs. Families of the
 * store for which no rows are given keep theirs, too.
 *
 * @param others stores that are only moved
 * @param ttlMs time to live of the given rows; None where they do not expire
 */
private[redisstate] final class Bootstrap private (
    val spec: StoreSpec,
    val others: Seq[StoreSpec],
    frames: Seq[(FamilyColumns, Dataset[_])],
    merges: Boolean,
    engine: StateEngine,
    source: StateSide,
    ttlMs: Option[Long]) {
  import Bootstrap._

  private val replaced: Set[Int] = frames.flatMap(_._1.families).toSet
  private val kept: Set[Int] = spec.filled.toSet -- replaced

  /**
   * Time of the store's version, and expiry of the given rows, which count as written now. None
   * without a time to live, and where rows stay that have no expiry: then all rows count as written
   * in the next batch with a time to live.
   */
  private lazy val times: Option[(Long, Long)] = for {
    ttlMs <- ttlMs
    nowS = System.currentTimeMillis() / MillisPerSecond
    timeS <- if (merges || kept.nonEmpty) engine.timeS(spec, Position, source) else Some(nowS)
  } yield timeS -> Expiry.after(math.max(timeS, nowS), ttlMs)

  /**
   * Rows of the store, in as many partitions as the store has. They are made once, and then come
   * from Spark's shuffle.
   *
   * @throws ConfigException from its tasks, for rows that no operator would write
   */
  lazy val rows: RDD[MovedRow] = {
    val givenS = times.fold(Expiry.Never)(_._2)
    val added = frames.map { case (columns, frame) => keyed(columns, frame, givenS) }
    val before =
      if (!merges) Nil
      else Seq(engine.rowsInPlace(spec, Position, source, replaced).mapPartitionsWithIndex {
        (partition, rows) =>
          rows.map(row => RowKey(partition, row.family, isGiven = false, row.key) -> RowValue(row))
      })
    val sorted = (added ++ before).reduce(_ union _)
      .repartitionAndSortWithinPartitions(new AsPlaced(spec.partitions))
    val columns = frames.map(_._1)
    val merged = sorted.mapPartitions(new OnePerKey(columns, _))
    if (kept.isEmpty) merged
    else merged.zipPartitions(engine.rowsInPlace(spec, Position, source, kept))(_ ++ _)
  }

  /** Digest of all rows that the store will have. */
  lazy val digest: StateDigest = engine.digestOf(spec, rows)

  def write(target: StateSide, watcher: MoveWatcher): MovedStore =
    engine.replace(spec, Position, target, rows, digest, times.map(_._1), watcher)

  /** Record that two calls for one folder have to agree on. */
  def record: JObject =
    ("operator" -> spec.operator) ~ ("variables" -> frames.map(_._1.variable).sorted.toList) ~
      ("merges" -> merges) ~ ("digest" -> digest.text)

  private def keyed(
      columns: FamilyColumns,
      frame: Dataset[_],
      expiryS: Long): RDD[(RowKey, RowValue)] = {
    val timeZone = frame.sparkSession.sessionState.conf.sessionLocalTimeZone
    val rows = GivenRows(columns, frame.schema, timeZone)
    val (partitions, keys) = (spec.partitions, columns.partitionKeys)
    frame.queryExecution.toRdd.mapPartitions { found =>
      val made = rows.maker
      val partitionOf = keys.of(partitions)
      val key = new org.apache.spark.sql.catalyst.expressions.UnsafeRow(
        columns.family.keySchema.length)
      found.flatMap { row =>
        val all = made(row)
        key.pointTo(all.head.key, all.head.key.length)
        val partition = partitionOf(key)
        all.map { one =>
          RowKey(partition, one.family, isGiven = true, one.key) -> RowValue(one.value, expiryS)
        }
      }
    }
  }
}

object Bootstrap {

  /** Position of a store that is alone in its operator: only such operators are supported. */
  private val Position = 0
  private val MillisPerSecond = 1000L

  /** Returns the columns of each operator and variable of a checkpoint as JSON, for Python. */
  def columns(session: SparkSession, folder: String): String = Named.errors {
    val hadoopConf = session.sessionState.newHadoopConf()
    val path = new org.apache.hadoop.fs.Path(folder)
    val checkpoint =
      QueryCheckpoint.read(path.getFileSystem(hadoopConf).makeQualified(path), hadoopConf)
    val found = StateCatalog.read(checkpoint, hadoopConf).groupBy(_.operator).toSeq.sortBy(_._1)
      .flatMap { case (_, stores) => FamilyColumns.of(stores.head, checkpoint.conf) }
    compact(render(found.toList.map {
      case Right(one) => described(one.spec, one.variable) ~ ("columns" -> one.wanted.toDDL)
      case Left(one) => described(one.spec, one.variable) ~ ("refused" -> one.why)
    }))
  }

  private def described(spec: StoreSpec, variable: String): JObject =
    ("operator" -> spec.operator) ~ ("name" -> spec.operatorName) ~ ("variable" -> variable)

  /** @throws ConfigException the rows have no place in the checkpoint, or are of other columns */
  private[redisstate] def apply(
      checkpoint: QueryCheckpoint,
      stores: Seq[StoreSpec],
      own: StateRows,
      engine: StateEngine,
      source: StateSide,
      target: StateSide): Bootstrap = {
    def refused(why: String) = new ConfigException(
      s"give state to ${checkpoint.folder}: $why Nothing was changed.")
    val operators = stores.map(_.operator).distinct
    def listed = operators.map(at => s"$at (${stores.find(_.operator == at).get.operatorName})")
      .mkString(", ")
    val operator = own.operator.getOrElse(operators match {
      case Seq(one) => one
      case _ => throw refused(s"name one of its operators: $listed.")
    })
    val (there, others) = stores.partition(_.operator == operator)
    val spec = there.headOption.getOrElse(
      throw refused(s"it has no operator $operator. It has: $listed."))
    if (!checkpoint.conf.get(SQLConf.STATEFUL_OPERATOR_USE_STRICT_DISTRIBUTION.key)
        .contains("true")) {
      throw refused(
        "it began with a Spark before 3.3, so the partition of a row cannot be determined. Start a new " +
          "checkpoint.")
    }
    val known = FamilyColumns.of(spec, checkpoint.conf)
    val names = known.map(_.fold(_.variable, _.variable))
    val unknown = own.frames.keySet -- names
    if (own.frames.isEmpty || unknown.nonEmpty) {
      throw refused(
        if (names == Seq("")) s"$spec has no state variables. Give a single DataFrame."
        else if (unknown == Set("")) s"$spec has the state variables ${names.mkString(
            ", ")}. Give rows for each by its name."
        else
          s"$spec has no state variable ${unknown.mkString(", ")}. It has: ${names.mkString(", ")}.")
    }
    val chosen = known.collect {
      case Left(none) if own.frames.contains(none.variable) =>
        val what = if (none.variable.isEmpty) s"$spec" else s"$spec variable ${none.variable}"
        throw refused(s"$what takes no rows: ${none.why}.")
      case Right(columns) if own.frames.contains(columns.variable) =>
        columns -> own.frames(columns.variable)
    }
    chosen.foreach { case (columns, frame) =>
      if (frame.isStreaming)
        throw GivenRows.refused(columns, "the DataFrame is a stream. Read it with spark.read.")
      GivenRows(columns, frame.schema, "UTC"): Unit
    }
    val ttlMs =
      if (spec.usesFamilies) None
      else RedisTarget.optionsOf(target.conf).stateTtlMs(spec.operator)
    new Bootstrap(spec, others, chosen, own.merges, engine, source, ttlMs)
  }

  /**
   * Sort key of the rows.
   *
   * @param key bytes of the UnsafeRow
   */
  private final case class RowKey(
      partition: Int,
      family: Int,
      isGiven: Boolean,
      key: Array[Byte]) {
    def isSame(other: RowKey): Boolean = family == other.family && Arrays.equals(key, other.key)
  }

  private final case class RowValue(bytes: Array[Byte], expiryS: Long)

  private object RowValue {
    def apply(row: MovedRow): RowValue = RowValue(row.value, row.expiryS)
  }

  /** Sorts a given row before the existing row of the same key. */
  private implicit val ordering: Ordering[RowKey] = new Ordering[RowKey] {
    override def compare(one: RowKey, other: RowKey): Int = {
      val families = Integer.compare(one.family, other.family)
      val keys = if (families != 0) families else Arrays.compare(one.key, other.key)
      if (keys != 0) keys else java.lang.Boolean.compare(other.isGiven, one.isGiven)
    }
  }

  private final class AsPlaced(override val numPartitions: Int) extends Partitioner {
    override def getPartition(key: Any): Int = key.asInstanceOf[RowKey].partition
  }

  /** Keeps the first row of each key. */
  private final class OnePerKey(
      columns: Seq[FamilyColumns],
      sorted: Iterator[(RowKey, RowValue)])
      extends Iterator[MovedRow] {
    private val rows = sorted.buffered

    override def hasNext: Boolean = rows.hasNext

    override def next(): MovedRow = {
      val (key, value) = rows.next()
      while (rows.hasNext && rows.head._1.isSame(key)) {
        if (rows.head._1.isGiven) throw twice(key.family)
        rows.next(): Unit
      }
      MovedRow(key.family, key.key, value.bytes, value.expiryS)
    }

    private def twice(family: Int) = {
      val one = columns.find(_.families(family)).get
      val of = one.keys.collect { case ColumnSource.Given(at) => one.wanted(at).name } ++
        one.keys.collect { case ColumnSource.StartOf(at) => s"${one.wanted(at).name}.start" }
      GivenRows.refused(
        one,
        s"two rows have the same key. Find them by groupBy(${of.mkString("'", "', '", "'")}).count(), and keep one of each.")
    }
  }
}
