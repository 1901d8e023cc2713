package org.redisstate.core.store

import java.util.BitSet
import java.util.concurrent.{CancellationException, ExecutionException, FutureTask}

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.redisstate.core.format.Bucketing
import org.redisstate.core.local.{Content, KeyHash, Layers, StoredKey}
import org.redisstate.core.store.resources.{FileReads, MemoryBudget, StoreCounters}

/**
 * Reads rows that a task will need from files, together. Keys are added, `start` begins the reads,
 * and `await` returns when all have ended. An error costs only speed: the following `get` reads
 * again, and throws it. For one thread; any thread may call `close`.
 */
final class Prefetch private[store] (
    content: Content,
    hashOf: KeyHash,
    budget: MemoryBudget,
    counters: StoreCounters)
    extends AutoCloseable {
  import Prefetch._

  private val base = content.base
  private val wanted = new BitSet
  private var buckets = 0
  private val bucketsMax =
    math.max(BucketsMin, budget.aheadFree / math.max(1L, base.bucketGrant))
  @volatile private var reads: Seq[Read] = Nil
  @volatile private var isClosed = false
  private var bytes = 0L

  /** Adds the key of a row: family id and encoded key. */
  def add(key: Array[Byte], length: Int): Unit =
    if (!hashOf.ordered(StoredKey.familyOf(key, 0))) {
      val hash = hashOf(key, 0, length)
      if (!Layers.decide(content.layers, hash, key, 0, length)) want(hash)
    }

  /** Returns whether a key of an unordered family can be looked up without a read. */
  def isHere(key: Array[Byte], length: Int): Boolean = {
    val hash = hashOf(key, 0, length)
    Layers.decide(content.layers, hash, key, 0, length) ||
    !base.isMissing(Bucketing.bucket(hash, base.buckets)) || base.denies(hash)
  }

  /** Adds all rows with some stored bucketing bytes. */
  def addPrefix(prefix: Array[Byte], length: Int): Unit = want(KeyHash.ofPrefix(prefix, length))

  /** True if there is no room for the rows of more keys. */
  def isFull: Boolean = buckets >= bucketsMax

  private def want(hash: Int): Unit = {
    val bucket = Bucketing.bucket(hash, base.buckets)
    if (!isFull && base.isMissing(bucket) && !wanted.get(bucket) && !base.denies(hash)) {
      wanted.set(bucket)
      buckets += 1
    }
  }

  /** Submits the reads to other threads. */
  def start(): Unit = synchronized {
    if (!isClosed && buckets > 0) {
      bytes = buckets * base.bucketGrant
      budget.aheadBy(bytes)
      reads =
        base.prefetchGroups(wanted, budget.bytesMax / (RangesShare * FileReads.parallel)).map {
          group =>
            Read(group.length, new FutureTask[Unit](() => bring(group)))
        }
      reads.foreach(read => FileReads.submit(read.task))
    }
  }

  /** Waits until all reads have ended; runs those that no other thread has begun. */
  def await(): Unit = {
    val late = reads.filterNot(_.task.isDone)
    if (late.nonEmpty) {
      counters.prefetchedLate.addAndGet(late.iterator.map(_.buckets.toLong).sum)
      StoreCounters.timed(counters.missNs)(late.foreach(read => await(read.task)))
    }
  }

  private def await(task: FutureTask[Unit]): Unit =
    try {
      task.run()
      task.get()
    } catch {
      case _: CancellationException => ()
      case e: ExecutionException => throw e.getCause
    }

  /** Cancels the reads that have not begun, and stops counting the others as read ahead. */
  override def close(): Unit = synchronized {
    if (!isClosed) {
      isClosed = true
      reads.foreach(read => FileReads.cancel(read.task))
      budget.aheadBy(-bytes)
    }
  }

  private def bring(group: Array[Int]): Unit =
    try {
      if (!isClosed) counters.prefetched.addAndGet(base.prefetch(group).toLong)
      ()
    } catch {
      case NonFatal(e) => log.debug("a prefetch failed; the next reader of the rows repeats it", e)
    }
}

private object Prefetch {
  private val log = LoggerFactory.getLogger(classOf[Prefetch])

  private final case class Read(buckets: Int, task: FutureTask[Unit])

  /** Least number of buckets that are read together, however small the local memory is. */
  private val BucketsMin = 32L

  /** Share of the local memory, as a divisor, for all ranges that are read at once. */
  private val RangesShare = 8L
}
