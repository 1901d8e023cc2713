package org.redisstate.core.store

import java.util.concurrent.{CountDownLatch, CyclicBarrier, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.local.{LayerSizes, RowValidator}
import org.redisstate.core.places.PlayedFiles
import org.redisstate.core.protocol.{
  CheckpointFormat,
  PartitionClient,
  ProtocolSettings,
  RunRegistry
}
import org.redisstate.core.store.resources.{Background, MemoryBudget}

/** A folder of files that never answers: no other query of the process waits for it. */
class HungFolderSuite extends AnyFunSuite with FilesFixture {
  import HungFolderSuite._

  test("a commit that waits for its folder holds no commit of another query") {
    onServer() { (p, files) =>
      val first = bounded(p)
      commit(first, at = 0)
      val gate = new CountDownLatch(1)
      val hangs = new CountDownLatch(1)
      files.before = step =>
        if (step == "create") {
          hangs.countDown()
          gate.await(HangS, TimeUnit.SECONDS): Unit
        }
      val stuck = new Thread(() => commit(first, at = 1))
      stuck.setDaemon(true)
      stuck.start()
      assert(hangs.await(20, TimeUnit.SECONDS))
      val beganNs = System.nanoTime()
      commit(another(p), at = 0)
      assert((System.nanoTime() - beganNs) / 1000000000 < HangS / 2)
      assert(stuck.isAlive && gate.getCount == 1)
      gate.countDown()
      stuck.join(HangS * 1000L)
      assert(!stuck.isAlive && p.meta("l") == "2")
    }
  }

  test("reads ahead that hang hold none of the helpers of other queries") {
    onServer() { (p, files) =>
      fillIntoFile(p)
      val gate = hangHelpers(files)
      val opened = (1 to 8).map(i => p.store(s"reader $i").open(1))
      val works = new CountDownLatch(Background.HelpersMax)
      (1 to Background.HelpersMax).foreach(_ => Background.helping("compaction")(works.countDown()))
      assert(works.await(HangS / 2, TimeUnit.SECONDS))
      val threads =
        Thread.getAllStackTraces.keySet.asScala.filter(_.getName.startsWith("redis-state-"))
      assert(threads.count(_.getName.startsWith(Helpers)) <= 2 * Background.HelpersMax)
      assert(threads.forall(_.isDaemon))
      gate.countDown()
      IdleBackground.await()
      assert(opened.forall(one => TestPartition.rows(one.iterator(0)).size == Rows))
    }
  }

  test("a compaction that hangs holds none of the helpers of other queries") {
    onServer() { (p, files) =>
      fillIntoFile(p)
      IdleBackground.await()
      val gate = hangHelpers(files)
      val store = p.store("b")
      store.client.bindTo(Share)
      val dice = new Random(5)
      (1 to 12).foreach { version =>
        val session = store.open(version).write()
        val text = dice.alphanumeric.take(20000).mkString
        TestPartition.put(session, TestPartition.key(0, s"new$version"), text)
        session.commit(): Unit
      }
      val all = new CyclicBarrier(Background.HelpersMax + 1)
      (1 to Background.HelpersMax).foreach(_ =>
        Background.helping("a query")(all.await(HangS / 2, TimeUnit.SECONDS): Unit))
      all.await(HangS / 2, TimeUnit.SECONDS)
      assert(gate.getCount == 1)
      gate.countDown()
      IdleBackground.await()
    }
  }

  /** Commits version 1, whose snapshot leaves Redis. */
  private def fillIntoFile(p: TestPartition): Unit = {
    val writer = bounded(p)
    commit(writer, at = 0)
    writer.open(1)
    writer.requestSnapshot()
    assert(writer.snapshotIfDue())
    while (writer.client.files.makeRoom(Share).nonEmpty) {}
  }

  /** Holds up the reads of files by helpers until the latch is open. */
  private def hangHelpers(files: PlayedFiles): CountDownLatch = {
    val gate = new CountDownLatch(1)
    def isHelper = Thread.currentThread.getName.startsWith(Helpers)
    files.before = step =>
      if (step == "read" && isHelper) gate.await(HangS, TimeUnit.SECONDS): Unit
    gate
  }

  private def bounded(p: TestPartition): PartitionVersions = {
    val made = p.store("a", sizes = Sizes)
    made.client.bindTo(Share)
    made
  }

  /** A store of another query on the same connections, without a bound. */
  private def another(p: TestPartition): PartitionVersions = {
    val gen = TestPartition.newGen()
    val registry = new RunRegistry(p.backend, "", gen)
    lazy val run = registry.register("other", byDriver = true, 0, Map.empty)
    val client = new PartitionClient(
      p.backend,
      p.id.copy(gen = gen),
      ProtocolSettings(100, 0, CheckpointFormat.V1),
      registry)
    new PartitionVersions(
      client,
      "other",
      () => run,
      TestPartition.Default,
      RowValidator.None,
      new MemoryBudget(1L << 30),
      sizes = Sizes)
  }

  private def commit(store: PartitionVersions, at: Long): Unit = {
    val dice = new Random(at)
    val session = store.open(at).write()
    (0 until Rows).foreach { i =>
      TestPartition.put(session, TestPartition.key(0, s"k$i"), dice.alphanumeric.take(200).mkString)
    }
    session.commit(): Unit
  }
}

private object HungFolderSuite {
  private val Share = 1L << 20
  private val Rows = 3000
  private val HangS = 40
  private val Helpers = "redis-state-background"

  /** A write set of more than this is sent before its commit. */
  private val Sizes = LayerSizes(64L << 10, 64L << 10)
}
