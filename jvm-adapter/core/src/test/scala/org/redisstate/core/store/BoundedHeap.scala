package org.redisstate.core.store

import java.nio.ByteBuffer
import java.util.concurrent.{Callable, Executors}

import scala.jdk.CollectionConverters._
import scala.util.Random

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.{RowIterator, Slice}
import org.redisstate.core.store.resources.MemoryBudget

/**
 * Partitions that hold far more together than a small heap, used as tasks use them: rows of plain,
 * prefixed (joins) and ordered (timers) families are read, changed, scanned and snapshotted, by two
 * tasks at a time. Ends with 0 when every row was right. `java -Xmx… -cp <test class path>
 * org.redisstate.core.store.BoundedHeap <partitions> <MiB each> <localMemory in MiB> <shape>`; the
 * shape is `snapshot` or `deltas`: what a new executor has to load.
 */
object BoundedHeap {
  import TestPartition._

  private val ValueBytes = 100
  private val RowBytes = 130
  private val Tasks = 2
  private val Touched = 100

  /** Number of rows that share the prefix of a join key. */
  private val Shared = 20

  def main(args: Array[String]): Unit = {
    val partitions = args(0).toInt
    val mib = args(1).toInt
    val memory = args(2).toInt
    val server = new RedisServerProcess()
    val rows = mib * (1 << 20) / RowBytes
    try run(server, partitions, rows, new MemoryBudget(memory.toLong << 20), args(3) == "deltas")
    finally server.close()
  }

  private def run(
      server: RedisServerProcess,
      partitions: Int,
      rows: Int,
      budget: MemoryBudget,
      deltas: Boolean): Unit = {
    val all = Seq.fill(partitions)(new TestPartition(server, budget = budget))
    val first = new TestPartition(server)
    val version = fill(first, rows, deltas)
    all.foreach(first.copyTo)
    first.close()
    val stores = all.map(_.store("run"))
    val workers = Executors.newFixedThreadPool(Tasks)
    try {
      for (batch <- 0 until 2) inTasks(workers, stores)(use(_, version + batch, rows, batch))
      stores.take(2).foreach { store =>
        store.open(version + 2)
        store.requestSnapshot()
        require(store.snapshotIfDue(), "no snapshot was added")
      }
      inTasks(workers, all.zip(stores).take(4)) { case (partition, store) =>
        scan(store.open(version + 2), rows)
        scan(partition.store("a reader").open(version + 2), rows)
        scan(partition.store("a reader").openOnce(version + 2, None), rows)
      }
      val again = stores.map(_.counters.bucketsReloaded.get).sum
      println(
        s"used ${budget.usedBytes}, at most ${budget.peakBytes} of ${budget.bytesMax} bytes; $again read again")
      require(again > 0, "nothing had to be read again")
    } finally {
      workers.shutdownNow()
      all.foreach(_.close())
    }
  }

  private def inTasks[A](workers: java.util.concurrent.ExecutorService, all: Seq[A])(
      work: A => Unit): Unit =
    workers.invokeAll(all.map(a => (() => work(a)): Callable[Unit]).asJava).asScala.foreach(_.get)

  private def fill(partition: TestPartition, rows: Int, deltas: Boolean): Long = {
    val store = partition.store("run")
    val commits = if (deltas) 4 else 1
    (0 until commits).foreach { version =>
      val session = store.open(version.toLong).write()
      if (version == 0) Seq(Prefixed, Ordered).foreach(session.defineFamily)
      (version until rows by commits).foreach(put(session, _, 0))
      session.commit()
    }
    store.open(commits.toLong)
    if (!deltas) {
      store.requestSnapshot()
      require(store.snapshotIfDue(), "no snapshot was added")
    }
    store.close()
    commits.toLong
  }

  /** Runs one task of a batch. */
  private def use(store: PartitionVersions, version: Long, rows: Int, batch: Int): Unit = {
    val session = store.open(version).write()
    val random = new Random(batch.toLong)
    val found = new Slice
    (0 until Touched).foreach { _ =>
      val row = random.nextInt(rows)
      val k = keyOf(row)
      require(session.get(k, k.length, found), s"row $row is missing")
      require(found.length == ValueBytes && nameIn(found) == row, s"row $row is another")
      put(session, row, batch + 1)
    }
    val prefix = keyOf(rows / 16 * 8 + 1)
    require(count(session.prefixScan(prefix, PrefixBytes)) > 0, "a join key has no rows")
    val timers = session.rangeScan(Ordered.id, None, None)
    val key, value = new Slice
    (0 until Touched).foreach(_ => require(timers.next(key, value), "a timer is missing"))
    session.commit()
    ()
  }

  private def scan(opened: OpenVersion, rows: Int): Unit = {
    val seen = Seq(Default, Prefixed, Ordered).map(f => count(opened.iterator(f.id))).sum
    require(seen == rows && opened.numKeys == rows, s"$seen of $rows rows")
  }

  private def count(rows: RowIterator): Int = {
    val key, value = new Slice
    var n = 0
    while (rows.next(key, value)) n += 1
    n
  }

  /** Returns the key of a row: of eight rows, five are plain, two prefixed and one is a timer. */
  private def keyOf(row: Int): Array[Byte] = {
    val kind = row % 8
    if (kind == 0) ByteBuffer.allocate(6).put(0.toByte).put(3.toByte).putInt(row).array
    else if (kind < 3)
      ByteBuffer.allocate(PrefixBytes + 4).put(Array[Byte](0, 1, 4, 0, 0, 0)).putInt(
        row / 8 / Shared).putInt(row).array
    else ByteBuffer.allocate(6).put(Array[Byte](0, 0)).putInt(row).array
  }

  private val PrefixBytes = 10

  private def nameIn(value: Slice): Int = ByteBuffer.wrap(value.array).getInt(value.offset)

  private def put(session: WriteSession, row: Int, batch: Int): Unit = {
    val k = keyOf(row)
    val value = new Array[Byte](ValueBytes)
    new Random(row.toLong * 31 + batch).nextBytes(value)
    ByteBuffer.wrap(value).putInt(row)
    session.put(k, k.length, value, value.length)
  }
}
