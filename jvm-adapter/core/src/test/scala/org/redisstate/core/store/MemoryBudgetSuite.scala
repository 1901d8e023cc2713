package org.redisstate.core.store

import java.lang.management.ManagementFactory
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.Slice
import org.redisstate.core.store.resources.MemoryBudget

/** Memory budget of an executor: its stores stay within the budget, and its account is correct. */
class MemoryBudgetSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private val Rows = 12000
  private val Partitions = 16

  /**
   * Beyond the bound while room is made for them: what the tasks and the helpers ask for, each up
   * to about 1 MiB.
   */
  private val OverBytes = 5 << 20

  private val HeapTries = 4

  private def value(row: Int): String = new scala.util.Random(row).alphanumeric.take(100).mkString

  private def keyOf(row: Int): Array[Byte] =
    if (row % 4 == 0) key(3, f"$row%08d")
    else if (row % 4 == 1) prefixed(s"${row / 40}", s"$row")
    else key(0, s"$row")

  /** Some partitions with the same rows, about 1.5 MiB of them each. */
  private def filled(budget: MemoryBudget, commits: Int, snapshot: Boolean): Seq[TestPartition] = {
    val all = Seq.fill(Partitions)(new TestPartition(server, budget = budget))
    val ample = new TestPartition(server)
    val store = ample.store("run")
    (0 until commits).foreach { version =>
      val session = store.open(version.toLong).write()
      if (version == 0) Seq(Prefixed, Ordered).foreach(session.defineFamily)
      (version until Rows by commits).foreach(row => put(session, keyOf(row), value(row)))
      session.commit()
    }
    store.open(commits.toLong)
    if (snapshot) {
      store.requestSnapshot()
      assert(store.snapshotIfDue())
    }
    all.foreach(ample.copyTo)
    ample.close()
    all
  }

  private def together[A, B](all: Seq[A])(work: A => B): Seq[B] = {
    val workers = Executors.newFixedThreadPool(3)
    try workers.invokeAll(all.map(a => (() => work(a)): Callable[B]).asJava).asScala.map(
        _.get).toSeq
    finally workers.shutdownNow()
  }

  private def checkRows(opened: OpenVersion): Unit = {
    val found = Seq(Default, Prefixed, Ordered).map(f => rows(opened.iterator(f.id)).size).sum
    assert(found == Rows && opened.numKeys == Rows)
  }

  private def stays(commits: Int, snapshot: Boolean): Unit = {
    val budget = new MemoryBudget(3L << 20)
    val all = filled(budget, commits, snapshot)
    try {
      val stores = all.map(_.store("run"))
      val version = commits.toLong
      together(stores) { store =>
        val session = store.open(version).write()
        val found = new Slice
        for (row <- 7 until Rows by 300) {
          val k = keyOf(row)
          assert(session.get(k, k.length, found) && text(found) == value(row))
          put(session, k, value(row))
        }
        session.commit()
        checkRows(store.open(version + 1))
      }
      together(stores) { store =>
        store.open(version + 1)
        store.requestSnapshot()
        assert(store.snapshotIfDue())
        checkRows(store.open(version + 1))
      }
      assert(budget.peakBytes <= budget.bytesMax + OverBytes)
      assert(stores.map(_.counters.bucketsReloaded.get).sum > 0)
      stores.foreach(_.close())
      IdleBackground.await()
      assert(budget.usedBytes == 0)
      checkRows(all.head.store("a reader").open(version + 1))
    } finally all.foreach(_.close())
  }

  /** Bytes counted for open stores, and bytes of heap that closing the stores freed. */
  private def countedAndRetained(): (Long, Long) = {
    val budget = new MemoryBudget(1L << 30)
    val all = filled(budget, commits = 4, snapshot = true)
    try {
      val stores = all.map(_.store("run"))
      stores.foreach(store => checkRows(store.open(4)))
      stores.foreach(_.open(4))
      IdleBackground.await()
      val counted = budget.usedBytes
      val before = heapBytes()
      stores.foreach(_.close())
      IdleBackground.await()
      assert(budget.usedBytes == 0)
      (counted, before - heapBytes())
    } finally all.foreach(_.close())
  }

  test("what is counted is what is retained") {
    // The heap belongs to all suites of this JVM: what an earlier one lets go in between is not ours.
    val tries = Iterator.continually(countedAndRetained()).take(HeapTries).tapEach {
      case (counted, retained) => info(s"$counted bytes counted, $retained retained")
    }
    assert(tries.exists { case (counted, retained) =>
      retained < counted * 1.25 && retained > counted * 0.75
    })
  }

  test("partitions with eight times the budget stay within it: snapshots") {
    stays(commits = 1, snapshot = true)
  }

  test("partitions with eight times the budget stay within it: deltas without a snapshot") {
    stays(commits = 4, snapshot = false)
  }

  private def heapBytes(): Long = {
    val memory = ManagementFactory.getMemoryMXBean
    (0 until 3).foreach(_ => memory.gc())
    memory.getHeapMemoryUsage.getUsed
  }
}
