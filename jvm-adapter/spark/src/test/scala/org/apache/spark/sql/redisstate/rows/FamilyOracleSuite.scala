package org.apache.spark.sql.redisstate.rows

import java.nio.file.Files
import java.util.UUID

import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.RedisStateStoreProvider
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.types.StructType

import org.redisstate.core.RedisServerProcess

/**
 * Random column families, rows and scans, each asked of this provider and of Spark's RocksDB
 * provider, over commits, aborts and fresh providers: the answers have to be the same, in the same
 * order where an order is promised.
 */
class FamilyOracleSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val dummy = new StructType().add("key", "binary")
  private lazy val server = new RedisServerProcess

  override def afterAll(): Unit = server.close()

  private def init[A <: StateStoreProvider](provider: A, folder: String, run: String): A = {
    val conf = new SQLConf
    conf.setConfString(RedisStateConf.Prefix + "url", server.url)
    conf.setConfString(
      "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
      "true")
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, run)
    provider.init(
      StateStoreId(folder, 0L, 0),
      dummy,
      dummy,
      NoPrefixKeyStateEncoderSpec(dummy),
      useColumnFamilies = true,
      new StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    provider
  }

  /** Reads a scan to its end: key and value bytes. */
  private def rows(pairs: StateStoreIterator[UnsafeRowPair]): Seq[(Seq[Byte], Seq[Byte])] =
    try pairs.map(p => (p.key.getBytes.toSeq, Option(p.value).map(_.getBytes.toSeq).orNull)).toList
    finally pairs.close()

  private final class Both(seed: Long) {
    private val random = new Random(seed)
    private val run = UUID.randomUUID().toString
    private val ourFolder = Files.createTempDirectory("families").toString
    private val theirFolder = Files.createTempDirectory("oracle").toString
    private var ours = init(new RedisStateStoreProvider, ourFolder, run)
    private var theirs = init(new RocksDBStateStoreProvider, theirFolder, run)
    private var version = 0L
    private var replaced = 0
    private var families: Array[FamilyRows] = FamilyRows.Kinds.flatMap { kind =>
      Seq(false, true).map(lists => new FamilyRows(s"f-$kind-$lists", kind, lists, random))
    }.toArray

    def batch(): Unit = {
      val one = ours.getStore(version)
      val other = theirs.getStore(version)
      try work(one, other)
      catch {
        case e: Throwable =>
          // RocksDB's provider waits for its store before it closes.
          other.abort()
          throw e
      }
      if (random.nextInt(4) == 0) ours.doMaintenance()
      if (random.nextInt(3) == 0) reopen()
    }

    private def work(one: StateStore, other: StateStore): Unit = {
      families.foreach(f => Seq(one, other).foreach(create(_, f)))
      compareAll(one, other)
      for (_ <- 0 until 150) change(families(random.nextInt(families.length)), one, other)
      compareAll(one, other)
      val before = families.clone()
      val touched = random.nextInt(6) == 0
      if (touched) replaceFamily(one, other)
      if (random.nextInt(6) == 0) {
        one.abort()
        other.abort()
        // RocksDB's provider forgets the encoders of a family whose removal was aborted.
        if (touched) reopen()
        families = before
      } else {
        version = one.commit()
        assert(other.commit() == version)
      }
    }

    private def create(store: StateStore, f: FamilyRows): Unit =
      store.createColFamilyIfAbsent(f.name, f.argument, f.valueSchema, f.spec, f.lists)

    private def replaceFamily(one: StateStore, other: StateStore): Unit = {
      val at = random.nextInt(families.length)
      val old = families(at)
      Seq(one, other).foreach(s => assert(s.removeColFamilyIfExists(old.name)))
      // Under its old name a family of another schema is decoded wrongly by RocksDB's provider,
      // which caches encoders by name.
      if (random.nextBoolean()) {
        replaced += 1
        families(at) = new FamilyRows(s"${old.name}-$replaced", old.kind, old.lists, random)
      }
      Seq(one, other).foreach(create(_, families(at)))
      compareAll(one, other)
    }

    private def reopen(): Unit = {
      ours.close()
      ours = init(new RedisStateStoreProvider, ourFolder, run)
      theirs.close()
      theirs = init(new RocksDBStateStoreProvider, theirFolder, run)
    }

    def close(): Unit = {
      ours.close()
      theirs.close()
    }

    private def change(f: FamilyRows, one: StateStore, other: StateStore): Unit = {
      val key = f.key()
      val value = f.value()
      val list = Array.fill(1 + random.nextInt(4))(f.value())
      def both(body: StateStore => Unit): Unit = Seq(one, other).foreach(body)
      random.nextInt(10) match {
        case 0 | 1 => both(_.remove(key, f.name))
        case 2 | 3 if f.lists => both(_.merge(key, value, f.name))
        case 4 | 5 if f.lists => both(_.mergeList(key, list, f.name))
        case 6 if f.lists => both(_.putList(key, list, f.name))
        case 7 if f.deletesRanges && random.nextInt(4) == 0 =>
          val end = f.key()
          if (above(f, end, key)) both(_.deleteRange(key, end, f.name))
        case _ => both(_.put(key, value, f.name))
      }
    }

    /** RocksDB refuses ranges that end before they begin. */
    private def above(f: FamilyRows, end: UnsafeRow, begin: UnsafeRow): Boolean = {
      val encoder = f.spec.toEncoder(new UnsafeRowDataEncoder(f.spec, f.valueSchema), true)
      java.util.Arrays.compareUnsigned(encoder.encodeKey(end), encoder.encodeKey(begin)) > 0
    }

    private def compareAll(one: StateStore, other: StateStore): Unit = families.foreach { f =>
      def same[A](what: String)(ask: StateStore => A): Unit = {
        val (mine, rocks) = (ask(one), ask(other))
        assert(mine == rocks, s"$what of ${f.name} at version $version, seed $seed")
      }
      val ordered = f.kind == "range" || f.kind == "timestamp-prefix"
      def all(rows: Seq[(Seq[Byte], Seq[Byte])]): Any = if (ordered) rows else rows.groupBy(_._1)
      same("iterator")(s => all(rows(s.iterator(f.name))))
      if (f.lists)
        same("iteratorWithMultiValues")(s => all(rows(s.iteratorWithMultiValues(f.name))))
      for (_ <- 0 until 5) {
        val key = f.key()
        same("get")(s => Option(s.get(key, f.name)).map(_.getBytes.toSeq))
        same("keyExists")(_.keyExists(key, f.name))
        if (f.lists)
          same("valuesIterator")(_.valuesIterator(key, f.name).map(_.getBytes.toSeq).toList)
        if (f.scansPrefixes) comparePrefix(f, same(_)(_))
        if (f.scansRanges) compareRange(f, same(_)(_))
      }
      val keys = Array.fill(4)(f.key())
      same("multiGet")(_.multiGet(keys, f.name).map(r =>
        Option(r).map(_.getBytes.toSeq)).toList)
    }

    private def comparePrefix(f: FamilyRows, same: (String, StateStore => Any) => Unit): Unit = {
      val prefix = f.prefix()
      same("prefixScan", s => rows(s.prefixScan(prefix, f.name)))
      if (f.lists)
        same("prefixScanWithMultiValues", s => rows(s.prefixScanWithMultiValues(prefix, f.name)))
    }

    private def compareRange(f: FamilyRows, same: (String, StateStore => Any) => Unit): Unit = {
      val (from, to) = if (random.nextBoolean()) f.neighbours() else (f.key(), f.key())
      val start = if (random.nextInt(4) == 0) None else Some(from)
      val end = if (random.nextInt(4) == 0) None else Some(to)
      if (start.isEmpty || end.isEmpty || above(f, to, from)) {
        same("rangeScan", s => rows(s.rangeScan(start, end, f.name)))
        if (f.lists)
          same(
            "rangeScanWithMultiValues",
            s => rows(s.rangeScanWithMultiValues(start, end, f.name)))
      }
    }
  }

  for (seed <- 1 to 12) test(s"families answer as those of RocksDB, seed $seed") {
    val both = new Both(seed.toLong)
    try for (_ <- 0 until 8) both.batch()
    finally both.close()
  }
}
