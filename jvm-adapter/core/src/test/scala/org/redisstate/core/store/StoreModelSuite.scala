package org.redisstate.core.store

import scala.collection.immutable.TreeMap
import scala.util.Random

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.{Family, MultiValue, Tombstone, Vectors}
import org.redisstate.core.places.PlayedFiles
import org.redisstate.core.protocol.CheckpointFormat
import org.redisstate.core.store.resources.MemoryBudget

/**
 * Sessions of every kind of family against a plain map, seen by the writing store and by one that
 * loads everything.
 */
class StoreModelSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private val seed = sys.props.get("redisstate.seed").fold(System.nanoTime())(_.toLong)
  info(s"seed $seed (again: -Dredisstate.seed=$seed)")
  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  /** Share of a bounded partition; what leaves Redis leaves by request. */
  private val Share = 1L << 30

  /** Room for everything, and for some of it. */
  private val MemoryBytes = Seq(1L << 30, 4L << 20)

  /** Histories in each format and with each set of families, with much and with little memory in turns. */
  private val Rounds = if (sys.env.get("REDIS_STATE_LONG").contains("1")) 20 else 2

  /** Deltas over ordered families are loaded in another way. */
  private val FamilySets = Seq(Seq(Prefixed, Lists, Ordered), Seq(Prefixed, Lists))

  private type Rows = TreeMap[String, String]

  /** A key of the default family, 0, or of one that the session defined. */
  private def randomKey(random: Random, families: Int): Array[Byte] = {
    val n = random.nextInt(600).toString
    random.nextInt(families) match {
      case 1 => prefixed(s"p${random.nextInt(9)}", n)
      case family => key(family, n)
    }
  }

  private def change(random: Random, session: WriteSession, before: Rows, large: Boolean): Rows = {
    var rows = before
    val families = session.allFamilies.size
    for (_ <- 1 to (if (large) 4000 else random.nextInt(200))) {
      val k = randomKey(random, families)
      val name = Vectors.hex(k)
      val length = if (large) 1000 + random.nextInt(1000) else random.nextInt(20)
      val text = random.alphanumeric.take(length).mkString
      random.nextInt(9) match {
        case 0 | 1 =>
          session.remove(k, k.length)
          rows -= name
        case 2 if random.nextInt(30) == 0 =>
          val family = random.nextInt(families)
          val from = bound(random)
          val to = bound(random)
          session.deleteRange(family, from, to)
          val range = Tombstone(family, from, to)
          rows = rows.filterNot { case (name, _) =>
            val bytes = Vectors.fromHex(name)
            range.covers(bytes, 0, bytes.length)
          }
        case _ if k(1) == 2 =>
          append(session, k, text)
          rows = rows.updated(
            name,
            rows.getOrElse(name, "") + Vectors.hex(MultiValue.encode(Seq(text.getBytes))))
        case _ =>
          put(session, k, text)
          rows = rows.updated(name, Vectors.hex(text.getBytes))
      }
    }
    rows
  }

  private def bound(random: Random): Option[Array[Byte]] =
    if (random.nextBoolean()) None else Some(random.nextInt(600).toString.getBytes)

  private def ofFamily(model: Rows, family: Int): Seq[(String, String)] =
    model.toSeq.filter(_._1.startsWith(f"$family%04x"))

  private def compareRows(version: OpenVersion, model: Rows): Unit = {
    assert(version.numKeys == model.size)
    for (family <- 0 to 2) assert(rows(version.iterator(family)).sorted == ofFamily(model, family))
    assert(rows(version.iterator(3)) == ofFamily(model, 3))
  }

  private def compare(version: OpenVersion, model: Rows): Unit = {
    compareRows(version, model)
    val prefix = prefixed("p3", "")
    assert(rows(version.prefixScan(prefix, prefix.length)).sorted ==
      model.toSeq.filter(_._1.startsWith(Vectors.hex(prefix))))
    val range = Tombstone(3, Some("2".getBytes), Some("4".getBytes))
    assert(rows(version.rangeScan(3, range.from, range.to)) == ofFamily(model, 3).filter {
      case (name, _) =>
        val bytes = Vectors.fromHex(name)
        range.covers(bytes, 0, bytes.length)
    })
  }

  /** An attempt at the next version: its uid and what it wrote. */
  private def attempt(
      random: Random,
      store: PartitionVersions,
      base: (Long, Option[String], Rows),
      families: Seq[Family],
      large: Boolean): (WriteSession, Rows) = {
    val (version, uid, model) = base
    val session = store.open(version, uid).write()
    if (version == 0) families.foreach(session.defineFamily)
    val rows = change(random, session, model, large)
    assert(session.numKeys == rows.size)
    (session, rows)
  }

  for (format <- Seq(CheckpointFormat.V1, CheckpointFormat.V2))
    test(s"every committed version equals the model: checkpoint format ${format.number}") {
      for (round <- 1 to Rounds; families <- FamilySets)
        withClue(s"seed $seed round $round of ${families.size} families: ") {
          val p = new TestPartition(server, budget = new MemoryBudget(MemoryBytes(round % 2)))
          try history(p, new Random(seed + round), format, families): Unit
          finally p.close()
        }
    }

  test("every committed version equals the model: with hot runs over bases in files") {
    var runs = 0
    for (round <- 1 to Rounds; families <- FamilySets)
      withClue(s"seed $seed round $round of ${families.size} families: ") {
        val p = new TestPartition(
          server,
          budget = new MemoryBudget(MemoryBytes(round % 2)),
          folders = Some(new PlayedFiles()))
        try runs += history(
            p,
            new Random(seed + round),
            CheckpointFormat.V1,
            families,
            bounded = true)
        finally p.close()
      }
    assert(runs > 0)
  }

  /** @return how many versions were compared while there was a hot run */
  private def history(
      p: TestPartition,
      random: Random,
      format: CheckpointFormat,
      families: Seq[Family],
      bounded: Boolean = false): Int = {
    def newStore(run: String) = {
      val made = p.store(run, format = format)
      if (bounded) made.client.bindTo(Share)
      made
    }
    var runs = 0
    var store = newStore("a")
    var model = TreeMap.empty[String, String]
    var uid = Option.empty[String]
    val last = if (bounded) 29 else 14
    for (version <- 0 to last) {
      val base = (version.toLong, uid, model)
      val (session, rows) = attempt(random, store, base, families, large = version % 5 == 3)
      var committed = List.empty[(String, Rows)]
      if (random.nextInt(4) > 0) committed ::= session.commit().uid -> rows
      else session.abort()
      val more = if (format == CheckpointFormat.V2) random.nextInt(3) else 0
      for (_ <- 1 to (if (committed.isEmpty) 1 + more else more)) {
        val (again, other) = attempt(random, store, base, families, large = false)
        committed ::= again.commit().uid -> other
      }
      if (format == CheckpointFormat.V2) committed.foreach { case (any, rows) =>
        compare(newStore("a reader").open(version + 1L, Some(any)), rows)
      }
      val (chosen, now) = committed(random.nextInt(committed.size))
      model = now
      uid = if (format == CheckpointFormat.V2) Some(chosen) else None
      compare(store.open(version + 1L, uid), model)
      if (random.nextInt(3) == 0) compare(newStore("a").open(version + 1L, uid), model)
      compareRows(newStore("a reader").openOnce(version + 1L, uid), model)
      if (random.nextInt(if (bounded) 10 else 3) == 0) store.requestSnapshot()
      store.snapshotIfDue()
      if (bounded && random.nextInt(3) == 0) p.client.files.makeRoom(1)
      if (p.keys.exists(_.startsWith("r:"))) {
        compare(newStore("a reader").open(version + 1L, uid), model)
        runs += 1
      }
      if (random.nextInt(4) == 0) store = newStore("a")
      if (random.nextInt(3) == 0)
        store.cache.shrink(Long.MaxValue, everything = random.nextBoolean())
      if (random.nextInt(3) == 0) store.cache.drop(random.nextInt(100000).toLong)
      if (!bounded) assert(p.damaged.isEmpty)
    }
    compare(newStore("a reader").open(last + 1L), model)
    runs
  }
}
