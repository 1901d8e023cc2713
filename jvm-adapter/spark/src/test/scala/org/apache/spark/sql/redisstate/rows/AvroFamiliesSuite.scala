package org.apache.spark.sql.redisstate.rows

import java.nio.file.Files
import java.util.UUID

import scala.collection.mutable
import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.avro.SchemaConverters
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.RedisStateStoreProvider
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.RedisServerProcess

/**
 * Column families of Avro rows whose value schemas evolve from run to run: this provider and
 * Spark's RocksDB provider are asked the same, and have to answer the same, in the same order where
 * an order is promised.
 */
class AvroFamiliesSuite extends AnyFunSuite with BeforeAndAfterAll {
  import AvroFamiliesSuite._

  private lazy val server = new RedisServerProcess

  override def afterAll(): Unit = server.close()

  private def init[A <: StateStoreProvider](
      provider: A,
      folder: String,
      run: String,
      schemas: StateSchemaProvider): A = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", server.url)
    conf.setConfString("spark.sql.streaming.stateStore.encodingFormat", "avro")
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, run)
    provider.init(
      StateStoreId(folder, 0L, 0),
      Dummy,
      Dummy,
      NoPrefixKeyStateEncoderSpec(Dummy),
      useColumnFamilies = true,
      new StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = Some(schemas)
    )
    provider
  }

  private final class Both(seed: Long) {
    private val random = new Random(seed)
    private val families = FamilyRows.Kinds.flatMap { kind =>
      Seq(false, true).map { lists =>
        new FamilyRows(s"f-$kind-$lists", kind, lists, random, FamilyRows.OrderedInAvro)
      }
    }
    private val toValue = Stages.map(UnsafeProjection.create(_: StructType))
    private val schemas = new Schemas
    private val encoders = mutable.Map.empty[String, RocksDBKeyStateEncoder]
    private val ourFolder = Files.createTempDirectory("families").toString
    private val theirFolder = Files.createTempDirectory("oracle").toString
    private var version = 0L

    /** A run of the query, whose values have the columns of a stage. */
    def run(stage: Int): Unit = {
      val id = UUID.randomUUID().toString
      families.foreach(schemas.add(_, stage))
      val ours = init(new RedisStateStoreProvider, ourFolder, id, schemas)
      val theirs = init(new RocksDBStateStoreProvider, theirFolder, id, schemas)
      try for (_ <- 0 until 2) batch(stage, ours.getStore(version), theirs.getStore(version))
      finally {
        ours.close()
        theirs.close()
      }
    }

    private def batch(stage: Int, one: StateStore, other: StateStore): Unit =
      try {
        families.foreach { f =>
          Seq(one, other).foreach(
            _.createColFamilyIfAbsent(f.name, f.argument, Stages(stage), f.spec, f.lists))
        }
        compareAll(stage, one, other)
        for (_ <- 0 until 60) change(stage, families(random.nextInt(families.size)), one, other)
        compareAll(stage, one, other)
        version = one.commit()
        assert(other.commit() == version)
      } catch {
        case e: Throwable =>
          // RocksDB's provider waits for its store before it closes.
          other.abort()
          throw e
      }

    private def value(stage: Int): UnsafeRow = {
      val columns = Stages(stage).fields.map { field =>
        field.dataType match {
          case LongType => random.nextLong()
          case IntegerType if random.nextInt(4) > 0 => random.nextInt()
          case StringType => UTF8String.fromString(random.alphanumeric.take(12).mkString)
          case _ => null
        }
      }
      toValue(stage)(new GenericInternalRow(columns)).copy()
    }

    private def change(stage: Int, f: FamilyRows, one: StateStore, other: StateStore): Unit = {
      val key = f.key()
      val list = Array.fill(1 + random.nextInt(3))(value(stage))
      def both(body: StateStore => Unit): Unit = Seq(one, other).foreach(body)
      random.nextInt(10) match {
        case 0 | 1 => both(_.remove(key, f.name))
        case 2 | 3 if f.lists => both(_.merge(key, list.head, f.name))
        case 4 | 5 if f.lists => both(_.mergeList(key, list, f.name))
        case 6 if f.lists => both(_.putList(key, list, f.name))
        case 7 if f.deletesRanges =>
          val end = f.key()
          if (above(f, end, key)) both(_.deleteRange(key, end, f.name))
        case _ => both(_.put(key, list.head, f.name))
      }
    }

    /** RocksDB refuses ranges that end before they begin. */
    private def above(f: FamilyRows, end: UnsafeRow, begin: UnsafeRow): Boolean = {
      val encoder = encoders.getOrElseUpdate(
        f.name, {
          val avro = new AvroStateEncoder(f.spec, Stages.head, Some(schemas), f.name)
          f.spec.toEncoder(avro, true)
        })
      java.util.Arrays.compareUnsigned(encoder.encodeKey(end), encoder.encodeKey(begin)) > 0
    }

    private def compareAll(stage: Int, one: StateStore, other: StateStore): Unit =
      families.foreach { f =>
        def same(what: String)(ask: StateStore => Any): Unit = {
          val (mine, rocks) = (ask(one), ask(other))
          assert(mine == rocks, s"$what of ${f.name} at version $version, stage $stage, seed $seed")
        }
        val ordered = f.kind == "range" || f.kind == "timestamp-prefix"
        def all(rows: Seq[(Seq[Byte], Seq[Byte])]): Any = if (ordered) rows else rows.groupBy(_._1)
        same("iterator")(s => all(rows(s.iterator(f.name))))
        if (f.lists)
          same("iteratorWithMultiValues")(s => all(rows(s.iteratorWithMultiValues(f.name))))
        for (_ <- 0 until 4) {
          val key = f.key()
          same("get")(s => Option(s.get(key, f.name)).map(_.getBytes.toSeq))
          if (f.lists)
            same("valuesIterator")(_.valuesIterator(key, f.name).map(_.getBytes.toSeq).toList)
          if (f.scansPrefixes) {
            val prefix = f.prefix()
            same("prefixScan")(s => rows(s.prefixScan(prefix, f.name)))
          }
          if (f.scansRanges) {
            val (from, to) = f.neighbours()
            if (above(f, to, from))
              same("rangeScan")(s => rows(s.rangeScan(Some(from), Some(to), f.name)))
            same("rangeScan without end")(s => rows(s.rangeScan(Some(from), None, f.name)))
          }
        }
      }

    private def rows(pairs: StateStoreIterator[UnsafeRowPair]): Seq[(Seq[Byte], Seq[Byte])] =
      try
        pairs.map(p => (p.key.getBytes.toSeq, Option(p.value).map(_.getBytes.toSeq).orNull)).toList
      finally pairs.close()
  }

  for (seed <- 1 to 2) test(s"families of Avro rows answer as those of RocksDB, seed $seed") {
    val both = new Both(seed.toLong)
    Stages.indices.foreach(both.run)
  }
}

private object AvroFamiliesSuite {
  private val Dummy = new StructType().add("key", "binary")

  /** Columns are added, reordered, widened and removed. */
  private val Stages: IndexedSeq[StructType] = IndexedSeq(
    new StructType().add("v", IntegerType).add("s", StringType),
    new StructType().add("x", IntegerType).add("s", StringType).add("v", LongType),
    new StructType().add("v", LongType).add("t", StringType)
  )

  /** Schemas that the driver of a query knows. */
  private final class Schemas extends StateSchemaProvider {
    private var known = Map.empty[StateSchemaMetadataKey, StateSchemaMetadataValue]
    private var current = 0

    def add(f: FamilyRows, stage: Int): Unit = {
      current = stage
      enter(StateSchemaMetadataKey(f.name, 0, isKey = true), f.keySchema)
      enter(StateSchemaMetadataKey(f.name, stage.toShort, isKey = false), Stages(stage))
    }

    private def enter(key: StateSchemaMetadataKey, schema: StructType): Unit =
      known += key -> StateSchemaMetadataValue(
        schema,
        SchemaConverters.toAvroTypeWithDefaults(schema))

    override def getSchemaMetadataValue(key: StateSchemaMetadataKey): StateSchemaMetadataValue =
      known(key)

    override def getCurrentStateSchemaId(colFamilyName: String, isKey: Boolean): Short =
      if (isKey) 0 else current.toShort
  }
}
