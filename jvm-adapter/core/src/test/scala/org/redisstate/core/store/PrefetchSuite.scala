package org.redisstate.core.store

import java.nio.charset.StandardCharsets.ISO_8859_1
import java.util.concurrent.{CountDownLatch, FutureTask}

import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.local.Slice
import org.redisstate.core.places.PlayedFiles
import org.redisstate.core.store.resources.{FileReads, MemoryBudget, StoreCounters}

/** Rows that are read from files ahead of their use. */
class PrefetchSuite extends AnyFunSuite {
  import PrefetchSuite._

  test("1,000 cold rows need a fraction of the rounds, and no more memory than allowed") {
    onFiles() { (of, files) =>
      val alone = of(new MemoryBudget(SmallMemory))
      val without = Rounds.of(files)(keys(1000).foreach(i => assert(alone.get(i) == valueOf(i))))
      val budget = new MemoryBudget(SmallMemory)
      val reader = of(budget)
      val together = Rounds.of(files) {
        reader.ahead(keys(1000))(i => assert(reader.get(i) == valueOf(i)))
      }
      assert(without.rounds > 300)
      assert(together.rounds * 3 < without.rounds)
      assert(together.mostAtOnce > 8 && together.mostAtOnce <= FileReads.parallel)
      assert(budget.peakBytes <= SmallMemory + SmallMemory / 4)
      assert(reader.counters.prefetched.get > 300)
      assert(budget.aheadFree == SmallMemory / 16)
    }
  }

  test("as many ranges are read at once as the option allows") {
    onFiles() { (of, files) =>
      val before = FileReads.parallel
      try {
        Seq(3, 20, 3).foreach { parallel =>
          FileReads.resize(parallel)
          val reader = of(new MemoryBudget(SmallMemory))
          val together = Rounds.of(files)(reader.ahead(keys(300))(_ => ()))
          // The task reads, too, what nobody has begun to read.
          assert(together.mostAtOnce > 2 && together.mostAtOnce <= parallel + 1)
        }
      } finally FileReads.resize(before)
    }
  }

  test("neighbours are read together") {
    onFiles() { (of, files) =>
      val reader = of(new MemoryBudget(LargeMemory))
      val reads = files.reads.size
      reader.ahead(0 until Rows)(_ => ())
      assert((files.reads.size - reads) * 20 < Rows / 4)
      val after = files.reads.size
      (0 until Rows).foreach(i => assert(reader.get(i) == valueOf(i)))
      assert(files.reads.size == after)
    }
  }

  test("deltas in files over a base in a file are read ahead as one") {
    onFiles(versions = 6) { (of, files) =>
      val reader = of(new MemoryBudget(SmallMemory))
      val read = Rounds.of(files) {
        reader.ahead(keys(1000))(i => assert(reader.get(i) == valueOf(i)))
      }
      assert(read.mostAtOnce > 8)
      (0 until Rows by 7).foreach(i => assert(reader.get(i) == valueOf(i)))
    }
  }

  test("an error of a prefetch is left to the get that follows") {
    onFiles() { (of, files) =>
      val reader = of(new MemoryBudget(SmallMemory))
      files.answers = false
      reader.ahead(keys(100)) { _ => () }
      intercept[UnavailableException](keys(1000).foreach(reader.get))
      files.answers = true
      keys(100).foreach(i => assert(reader.get(i) == valueOf(i)))
    }
  }

  test("a closed prefetch reads no more, and counts nothing") {
    onFiles() { (of, files) =>
      val budget = new MemoryBudget(LargeMemory)
      val reader = of(budget)
      val gate = new CountDownLatch(1)
      val others = Seq.fill(FileReads.parallel)(new FutureTask[Unit](() => gate.await()))
      others.foreach(FileReads.submit)
      val reads = files.reads.size
      val free = budget.aheadFree
      val prefetch = reader.opened.prefetch().get
      keys(50).foreach(i => prefetch.add(stored(i), stored(i).length))
      prefetch.start()
      prefetch.close()
      gate.countDown()
      others.foreach(_.get())
      prefetch.await()
      assert(files.reads.size == reads)
      assert(budget.aheadFree == free)
      keys(10).foreach(i => assert(reader.get(i) == valueOf(i)))
    }
  }

  test("buckets that two windows want are read and counted once") {
    onFiles() { (of, _) =>
      val reader = of(new MemoryBudget(LargeMemory))
      val windows = Seq.fill(2)(reader.opened.prefetch().get)
      windows.foreach(one => keys(50).foreach(i => one.add(stored(i), stored(i).length)))
      val counted = windows.map { one =>
        one.start()
        one.await()
        reader.counters.prefetched.get
      }
      windows.foreach(_.close())
      assert(counted.head > 40 && counted.last == counted.head)
    }
  }

  test("a pass over a state larger than memory reads large ranges, one while another is used") {
    onFiles() { (of, files) =>
      val budget = new MemoryBudget(LargeMemory)
      val reader = of(budget)
      files.longestRead = 0
      val passed = Rounds.of(files)(assert(reader.scan() == Rows))
      assert(passed.rounds <= 12 && passed.readAhead >= 2)
      assert(files.longestRead > (3 << 20) && files.longestRead <= (8 << 20))
      assert(budget.peakBytes <= budget.bytesMax)
    }
  }

  test("an error of a range that is read ahead is left to the pass, which reads it again") {
    onFiles() { (of, files) =>
      val reader = of(new MemoryBudget(SmallMemory))
      val rows = reader.opened.iterator(0)
      val key, value = new Slice
      assert((0 until 10).forall(_ => rows.next(key, value)))
      files.answers = false
      intercept[UnavailableException](while (rows.next(key, value)) ())
      files.answers = true
      assert(reader.scan() == Rows)
    }
  }

  test("the rows of a version that made way are read ahead") {
    onFiles() { (of, _) =>
      val budget = new MemoryBudget(SmallMemory)
      val written = of(budget).written()
      budget.take(2 * SmallMemory)
      budget.give(2 * SmallMemory)
      val prefetch = written.prefetch()
      assert(prefetch.nonEmpty)
      prefetch.foreach(_.close())
    }
  }

  test("nothing is read ahead of a state in files that is in memory") {
    onFiles() { (of, _) =>
      val reader = of(new MemoryBudget(LargeMemory / 2))
      (0 until Rows).foreach(i => assert(reader.get(i) == valueOf(i)))
      assert(reader.opened.prefetch().isEmpty)
    }
  }

  test("nothing is read ahead of a state that is in Redis") {
    onFiles(share = 0) { (of, _) =>
      assert(of(new MemoryBudget(SmallMemory)).opened.prefetch().isEmpty)
    }
  }

  /**
   * @param versions with a large delta each above the base
   * @param share of the partition in Redis; 0 for no bound
   * @param body given makers of readers, which have nothing cached, by their memory
   */
  private def onFiles(versions: Int = 0, share: Long = Share)(
      body: (MemoryBudget => Reader, PlayedFiles) => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val files = new PlayedFiles
      val writer = new TestPartition(server, 2, folders = Some(files))
      try {
        val at = write(writer, versions, share)
        def of(budget: MemoryBudget): Reader = {
          val p = new TestPartition(
            server,
            2,
            gen = writer.id.gen,
            folders = Some(files),
            budget = budget)
          // Reading ahead in the background takes no more than is free.
          if (budget.bytesMax == LargeMemory) budget.take(LargeMemory / 10 * 9)
          new Reader(p, at)
        }
        body(of, files)
      } finally writer.close()
    }

  private def write(p: TestPartition, versions: Int, share: Long): Long = {
    val store = p.store("a")
    if (share > 0) store.client.bindTo(share)
    def put(at: Long, some: Seq[Int]): Long = {
      val session = store.open(at).write()
      some.foreach { i =>
        val value = valueOf(i).getBytes(ISO_8859_1)
        session.put(stored(i), stored(i).length, value, value.length)
      }
      session.commit().version
    }
    var at = (0 until 4).foldLeft(0L)((at, part) => put(at, (0 until Rows).filter(_ % 4 == part)))
    store.open(at)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    (1 to 3).foreach(_ => at = put(at, Seq(0)))
    store.retain()
    (1 to versions).foreach(v => at = put(at, (0 until Rows).filter(_ % 4 == v % 4)))
    at
  }
}

private object PrefetchSuite {

  /** Rows of 4,000 bytes that do not compress: four in a bucket. */
  private val Rows = 4000
  private val SmallMemory = 6L << 20

  /** Memory in which nothing is read ahead of a task but by a prefetch. */
  private val LargeMemory = 1L << 30
  private val Share = 24L << 20

  private val values = Array.tabulate(Rows)(i =>
    new String(new Random(i).nextBytes(4000).map(b => (b & 0x7f).toByte), ISO_8859_1))
  def valueOf(i: Int): String = values(i)
  def stored(i: Int): Array[Byte] = TestPartition.key(0, s"k$i")

  /** Some rows, in no order. */
  def keys(count: Int): Seq[Int] = new Random(5).shuffle((0 until Rows).toList).take(count)

  final class Reader(p: TestPartition, at: Long) extends AutoCloseable {
    private val store = p.store("reader")
    val opened: OpenVersion = store.open(at)
    private val found = new Slice
    IdleBackground.await()

    def get(i: Int): String = {
      assert(opened.get(stored(i), stored(i).length, found))
      new String(found.array, found.offset, found.length, ISO_8859_1)
    }

    /** Uses rows in windows, each of which is read ahead of its use. */
    def ahead(rows: Seq[Int])(use: Int => Unit): Unit = {
      var rest = rows
      while (rest.nonEmpty) {
        val count = opened.prefetch() match {
          case Some(made) => Using.resource(made)(window(_, rest)(use))
          case None =>
            rest.foreach(use)
            rest.length
        }
        rest = rest.drop(count)
      }
    }

    /** Uses as many rows as a prefetch has room for; returns their number. */
    private def window(prefetch: Prefetch, rest: Seq[Int])(use: Int => Unit): Int = {
      var count = 0
      while (count < rest.length && !prefetch.isFull) {
        prefetch.add(stored(rest(count)), stored(rest(count)).length)
        count += 1
      }
      prefetch.start()
      prefetch.await()
      rest.take(count).foreach(use)
      count
    }

    /** Reads all rows once; returns their number. */
    def scan(): Int = {
      val rows = opened.iterator(0)
      val key, value = new Slice
      Iterator.continually(rows.next(key, value)).takeWhile(identity).size
    }

    /** Writes a row, and opens its version, which memory has as a layer. */
    def written(): OpenVersion = {
      val session = opened.write()
      TestPartition.put(session, stored(0), "new")
      store.open(session.commit().version)
    }

    def counters: StoreCounters = store.counters
    override def close(): Unit = store.close()
  }

  /**
   * Reads of files: how many one after the other, at least, and how many at one time. A read that
   * begins after another one has ended is one round later.
   */
  final class Rounds {
    private var running, most, ended, ahead = 0

    def rounds: Int = synchronized(ended)
    def mostAtOnce: Int = synchronized(most)

    /** Reads by threads that are not the task's. */
    def readAhead: Int = synchronized(ahead)

    private def step(name: String): Unit = if (name == "read") {
      val round = synchronized {
        running += 1
        if (Thread.currentThread.getName.startsWith("redis-state-file-read")) ahead += 1
        most = math.max(most, running)
        ended + 1
      }
      Thread.sleep(2)
      synchronized {
        running -= 1
        ended = math.max(ended, round)
      }
    }
  }

  object Rounds {
    def of(files: PlayedFiles)(body: => Unit): Rounds = {
      val found = new Rounds
      files.before = found.step
      try body
      finally files.before = _ => ()
      found
    }
  }
}
