package org.apache.spark.sql.redisstate.stores.joins

import java.lang.reflect.InvocationTargetException
import java.nio.file.Files
import java.util.UUID

import scala.collection.mutable
import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.{ProviderHarness, RedisStateStoreProvider}
import org.apache.spark.sql.redisstate.conf.{ExpiringOperators, RedisStateConf, SparkMinor}
import org.apache.spark.sql.redisstate.rows.{EncoderPool, FamilyLayout, RowCodec, RowEncoding}
import org.apache.spark.sql.redisstate.stores.RedisReadStateStore
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Expiry

/**
 * Joins whose keys expire against a plain model: the four stores are written as Spark's operator
 * does, by attempts that end between two commits, or overtake each other.
 */
class JoinExpirySuite extends AnyFunSuite with BeforeAndAfterAll {
  import JoinExpirySuite._

  private lazy val server = new RedisServerProcess
  override def afterAll(): Unit = server.close()

  if (SparkMinor.ReadsJoinsOnly) testRows()

  private def testRows(): Unit = for (format <- Seq(1, 2); seed <- 1 to Seeds)
    test(s"rows of a join key leave together: checkpoint format $format, seed $seed") {
      val play = new Play(server.url, format, new Random(seed.toLong))
      val task = TaskContext.empty()
      TaskContext.setTaskContext(task)
      try play.run()
      finally {
        play.close()
        task.markTaskCompleted(None)
        TaskContext.unset()
      }
    }

  test("joins of state formats 3 and 4 are refused, which have one store") {
    val harness = new ProviderHarness(server.url)
    val options = Map(RedisStateConf.Prefix + "stateTtl" -> "1h")
    val made = harness.provider(harness.newId(), families = true, options = options)
    val e = intercept[Exception](made.getStore(0))
    assert(e.getMessage.contains("it is transformWithState, or a join of state format 3 or 4"))
    assert(e.getMessage.contains("A new join of state format 2, which is the default"))
    made.close()
  }

  test("joins are refused where the state reader opens their stores for writing") {
    val id = StateStoreId("checkpoint", 0, 0, Names.head)
    def check(): Unit = ExpiringOperators.check(id, hasFamilies = false, Some(1000L))
    if (SparkMinor.ReadsJoinsOnly) check()
    else assert(intercept[Exception](check()).getMessage.contains("opens the stores of a join"))
  }

  test("a state reader without a time to live leaves the partitions of a join to its query") {
    val harness = new ProviderHarness(server.url)
    val id = harness.newId().copy(storeName = Names.head)
    val run = UUID.randomUUID()
    val query = harness.provider(id, run, options = Map(RedisStateConf.Prefix + "stateTtl" -> "1h"))
    val (reader, untimed) = (harness.provider(id), harness.provider(id, run))
    commitExpiring(harness, query, 0)
    if (SparkMinor.ReadsJoinsOnly) assert(harness.read(reader, 1) == Map("a" -> 1))
    else Seq[() => Any](() => reader.getStore(1), () => replayed(reader, 1)).foreach { read =>
      val e = intercept[Exception](read())
      assert(e.getMessage.contains("opens the stores of a join for writing. Read it on Spark 4.3"))
    }
    commitExpiring(harness, query, 1)
    assert(harness.commit(untimed, 2, "b" -> 2) == 3)
    assert(harness.read(untimed, 3) == Map("a" -> 1, "b" -> 2))
    Seq(query, reader, untimed).foreach(_.close())
  }

  if (SparkMinor.ReadsJoinsOnly) test("a batch without an entry in the offset log is refused") {
    val play = new Play(server.url, 1, new Random(1))
    try {
      val e = intercept[Exception](play.openUnplanned())
      assert(
        e.getMessage.contains("[REDIS_UNAVAILABLE] read the time of batch 0 from the offset log"))
    } finally play.close()
  }
}

private object JoinExpirySuite {
  private val Seeds = 8
  private val Batches = 25
  private val TtlS = 1000L
  private val FirstS = 1000000000L // years ago: no time of the server is among those of batches
  private val Sides = Seq("left", "right")
  private val Names =
    Sides.flatMap(side => Seq(s"$side-${JoinKeys.Counts}", s"$side-${JoinKeys.Rows}"))
  private val KeySchema = new StructType().add("field0", StringType)
  private val IndexedSchema = KeySchema.add("index", LongType)
  private val CountSchema = new StructType().add("value", LongType)
  private val RowSchema = new StructType().add("v", IntegerType).add("matched", BooleanType)

  /** Opens a version as the state reader does with `snapshotStartBatchId`, on any minor. */
  private def replayed(reader: RedisStateStoreProvider, version: Long): AnyRef = {
    val method = reader.getClass.getMethods.find(_.getName == "replayStateFromSnapshot").get
    val versions = Seq[AnyRef](Long.box(version), Long.box(version))
    val arguments = (versions ++ Seq(Boolean.box(true), None, None)).take(method.getParameterCount)
    try method.invoke(reader, arguments: _*)
    catch { case e: InvocationTargetException => throw e.getCause }
  }

  /** Commits a row that expires, on any minor. */
  private def commitExpiring(
      harness: ProviderHarness,
      made: RedisStateStoreProvider,
      version: Long): Unit = {
    val read = made.getReadStore(version, None).asInstanceOf[RedisReadStateStore]
    val session = read.opened.write()
    val layout = FamilyLayout(
      0,
      StateStore.DEFAULT_COL_FAMILY_NAME,
      harness.valueSchema,
      NoPrefixKeyStateEncoderSpec(harness.keySchema),
      multiValue = false,
      internal = false,
      RowEncoding.Plain
    )
    val codec = new RowCodec(layout, new EncoderPool(useColumnFamilies = false))
    val keyLength = codec.encodeKey(harness.key("a"))
    val valueLength = codec.encodeValue(harness.value(1))
    session.put(codec.key, keyLength, codec.value, valueLength)
    session.commit(): Unit
  }

  private sealed trait Op { def key: String; def side: String }
  private final case class Add(side: String, key: String, value: Int) extends Op
  private final case class Mark(side: String, key: String) extends Op

  /** Removes the first row; the last one takes its place. */
  private final case class Evict(side: String, key: String) extends Op

  private def other(side: String): String = if (side == "left") "right" else "left"

  /** State of a join key. */
  private final case class Held(rows: Map[String, Vector[Int]], expiryS: Long)

  private final class Play(url: String, format: Int, random: Random) {
    private val folder = Files.createTempDirectory("join")
    private val root = folder.resolve("state").toString
    private val runId = UUID.randomUUID()
    private val toKey = UnsafeProjection.create(KeySchema)
    private val toIndexed = UnsafeProjection.create(IndexedSchema)
    private val toCount = UnsafeProjection.create(CountSchema)
    private val toRow = UnsafeProjection.create(RowSchema)
    private var ttlS = TtlS
    private var executors = Vector.fill(2)(executor(runId))
    private var uids = Map.empty[String, String]
    private var nowS = FirstS
    private val held = mutable.HashMap.empty[String, Held]
    Files.createDirectories(folder.resolve("offsets"))

    def close(): Unit = executors.foreach(_.values.foreach(_.close()))

    def run(): Unit = (0 until Batches).foreach { batch =>
      if (random.nextInt(4) == 0) {
        // All executors of a batch have one configuration.
        if (random.nextBoolean()) ttlS = TtlS / 2 * (1 + random.nextInt(3))
        close()
        executors = Vector.fill(2)(executor(runId))
      }
      nowS += Seq(0, 100, 300, 700, 1100, 1300)(random.nextInt(6))
      val entry = s"""v1\n{"batchWatermarkMs":0,"batchTimestampMs":${nowS * 1000 + 999}}\n{}"""
      Files.writeString(folder.resolve(s"offsets/$batch"), entry)
      play(batch.toLong)
    }

    def openUnplanned(): Unit = executors.head(Names.head).getStore(0): Unit

    private def play(batch: Long): Unit = {
      val ops = Seq.fill(random.nextInt(8))(op())
      held.filterInPlace((_, key) => key.expiryS > nowS)
      val before = held.toMap
      random.nextInt(3) match {
        case 0 => // killed between two commits
          val killed = attempt(batch, ops)
          Names.take(random.nextInt(Names.length)).foreach(killed(_).commit())
          killed.values.foreach(store => if (!store.hasCommitted) store.abort())
        case 1 => // overtaken by the attempt below, and overtaking it
          val slow = attempt(batch, ops)
          restore(before)
          val fast = attempt(batch, ops)
          Names.foreach { name =>
            val both = if (random.nextBoolean()) Seq(slow, fast) else Seq(fast, slow)
            both.foreach(_(name).commit())
          }
          return finish(batch, if (random.nextBoolean()) slow else fast)
        case _ => ()
      }
      restore(before)
      val whole = attempt(batch, ops)
      Names.foreach(whole(_).commit())
      finish(batch, whole)
    }

    private def restore(before: Map[String, Held]): Unit = {
      held.clear()
      held ++= before
    }

    private def finish(batch: Long, logged: Map[String, StateStore]): Unit = {
      if (format == 2) {
        uids = logged.map { case (name, store) =>
          name -> store.getStateStoreCheckpointInfo().stateStoreCkptId.get
        }
      }
      val reader = executor(UUID.randomUUID())
      try {
        val seen = Names.map(name =>
          name -> reader(name).getReadStore(batch + 1, uids.get(name)).iterator().map(pair =>
            pair.key.getUTF8String(0).toString -> pair.value.copy()).toSeq).toMap
        Sides.foreach { side =>
          val rows = seen(s"$side-${JoinKeys.Rows}").groupBy(_._1).map { case (key, found) =>
            key -> found.map(_._2.getInt(0)).sorted
          }
          val counts = seen(s"$side-${JoinKeys.Counts}").map { case (key, value) =>
            key -> value.getLong(0)
          }
          assert(counts.toMap == rows.map { case (key, values) => key -> values.length.toLong })
          assert(rows == ofModel(side))
        }
      } finally reader.values.foreach(_.close())
    }

    private def ofModel(side: String): Map[String, Seq[Int]] =
      held.toMap.map { case (key, of) => key -> of.rows(side).sorted.toSeq }.filter(_._2.nonEmpty)

    private def op(): Op = {
      val side = Sides(random.nextInt(2))
      val key = s"k${random.nextInt(3)}"
      random.nextInt(6) match {
        case 0 => Mark(side, key)
        case 1 => Evict(side, key)
        case _ => Add(side, key, random.nextInt(1000))
      }
    }

    /** Opens the four stores on one executor, and changes their rows and those of the model. */
    private def attempt(batch: Long, ops: Seq[Op]): Map[String, StateStore] = {
      val providers = executors(random.nextInt(executors.length))
      val stores = Names.map { name =>
        name -> providers(name).getStore(
          batch,
          uids.get(name),
          forceSnapshotOnCommit = random.nextInt(4) == 0,
          loadEmpty = false)
      }.toMap
      ops.foreach(change(stores, _))
      stores
    }

    private def change(stores: Map[String, StateStore], op: Op): Unit = {
      val counts = stores(s"${op.side}-${JoinKeys.Counts}")
      val rows = stores(s"${op.side}-${JoinKeys.Rows}")
      val of = held.getOrElse(op.key, Held(Sides.map(_ -> Vector.empty[Int]).toMap, 0))
      assert(valuesOf(stores, other(op.side), op.key) == of.rows(other(op.side)))
      val count = countOf(counts, op.key)
      assert(count == of.rows(op.side).length)
      op match {
        case Add(side, name, value) =>
          rows.put(indexed(name, count), row(value, matched = false))
          counts.put(key(name), this.count(count + 1))
          val expiryS = math.max(of.expiryS, Expiry.after(nowS, ttlS * 1000, Expiry.JoinStepsMin))
          held(name) = Held(of.rows.updated(side, of.rows(side) :+ value), expiryS)
        case Mark(side, name) if count > 0 =>
          rows.put(indexed(name, 0), row(of.rows(side).head, matched = true))
        case Evict(side, name) if count > 0 =>
          val last = of.rows(side).last
          if (count > 1) rows.put(indexed(name, 0), row(last, matched = false))
          rows.remove(indexed(name, count - 1))
          if (count > 1) counts.put(key(name), this.count(count - 1)) else counts.remove(key(name))
          val left = if (count > 1) last +: of.rows(side).tail.init else Vector.empty
          held(name) = of.copy(rows = of.rows.updated(side, left))
          if (held(name).rows.values.forall(_.isEmpty)) held.remove(name): Unit
        case _ => ()
      }
    }

    private def valuesOf(
        stores: Map[String, StateStore],
        side: String,
        name: String): Vector[Int] =
      (0L until countOf(stores(s"$side-${JoinKeys.Counts}"), name)).toVector.map { index =>
        val found = stores(s"$side-${JoinKeys.Rows}").get(indexed(name, index))
        assert(found != null, s"$side: no row $index of $name")
        found.getInt(0)
      }

    private def countOf(counts: StateStore, name: String): Long =
      Option(counts.get(key(name))).fold(0L)(_.getLong(0))

    private def key(name: String): UnsafeRow =
      toKey(new GenericInternalRow(Array[Any](UTF8String.fromString(name)))).copy()
    private def indexed(name: String, index: Long): UnsafeRow =
      toIndexed(new GenericInternalRow(Array[Any](UTF8String.fromString(name), index))).copy()
    private def count(n: Long): UnsafeRow = toCount(new GenericInternalRow(Array[Any](n))).copy()
    private def row(value: Int, matched: Boolean): UnsafeRow =
      toRow(new GenericInternalRow(Array[Any](value, matched))).copy()

    private def executor(of: UUID): Map[String, RedisStateStoreProvider] = Names.map { name =>
      val conf = new SQLConf
      conf.setConfString(RedisStateConf.Prefix + "url", url)
      conf.setConfString(RedisStateConf.Prefix + "stateTtl", s"${ttlS}s")
      conf.setConfString(
        "spark.sql.streaming.stateStore.checkpointFormatVersion",
        format.toString)
      val hadoopConf = new Configuration
      hadoopConf.set(StreamExecution.RUN_ID_KEY, of.toString)
      val hasRows = name.endsWith(JoinKeys.Rows)
      val keySchema = if (hasRows) IndexedSchema else KeySchema
      val made = new RedisStateStoreProvider
      made.init(
        StateStoreId(root, 0L, 0, name),
        keySchema,
        if (hasRows) RowSchema else CountSchema,
        NoPrefixKeyStateEncoderSpec(keySchema),
        useColumnFamilies = false,
        new StateStoreConf(conf),
        hadoopConf,
        useMultipleValuesPerKey = false,
        stateSchemaProvider = None
      )
      name -> made
    }.toMap
  }
}
