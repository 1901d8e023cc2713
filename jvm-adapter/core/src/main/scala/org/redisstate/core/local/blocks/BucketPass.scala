package org.redisstate.core.local.blocks

import java.util.concurrent.{ExecutionException, FutureTask}
import java.util.concurrent.atomic.AtomicLong

import org.redisstate.core.format.RowBlock

/**
 * Reads every bucket of a base once, in ascending order, for one thread. Compressed buckets stay
 * compressed; missing ones are read many at a time, and kept only while there is room. From files
 * they come in ranges, each of which is read while the range before it is used.
 */
private[local] final class BucketPass(base: BucketPass.Buckets, room: Room)
    extends (Int => RowBlock) {
  import BucketPass._

  private val aside = new Aside
  private var window = Empty

  /** Range that is read in another thread. */
  private var following = Option.empty[Range]
  private var size = FirstBuckets
  base.hold(aside)

  override def apply(index: Int): RowBlock = {
    val rows = if (window.has(index)) window.of(index) else behindWindow(index)
    if (index == base.buckets - 1) leaveWindow()
    rows
  }

  private def behindWindow(index: Int): RowBlock = {
    val here = base.unpackedHere(index)
    if (here != null) here
    else {
      leaveWindow()
      window = if (base.isFromFile) rangeOf(index) else readNow(index, base.gapEnd(index))
      window.of(index)
    }
  }

  private def leaveWindow(): Unit = {
    aside.add(-window.asideBytes)
    window = Empty
  }

  private def rangeOf(index: Int): Window = {
    val come = following.filter(_.has(index)).flatMap(rowsOf)
    val found = come.getOrElse(readRange(index, endOf(index)))
    following = begin(base.nextMissing(found.from + found.rows.length))
    found
  }

  private def rowsOf(range: Range): Option[Window] =
    try {
      range.task.run()
      Some(range.task.get())
    } catch {
      // The read that follows tells the error.
      case _: ExecutionException => None
    }

  private def begin(from: Int): Option[Range] = Option.when(from < base.buckets) {
    size = math.min(size * Growth, base.rangeBuckets)
    val until = endOf(from)
    val range = Range(from, until, new FutureTask[Window](() => readRange(from, until)))
    room.begin(range.task)
    range
  }

  private def endOf(from: Int): Int =
    base.missingEnd(from, math.min(base.buckets, from + math.min(size, base.rangeBuckets)))

  private def readNow(from: Int, until: Int): Window =
    kept(from, until).getOrElse(readAside(from, math.min(until, from + AsideBuckets)))

  private def readRange(from: Int, until: Int): Window =
    kept(from, until).getOrElse(readAside(from, until))

  private def kept(from: Int, until: Int): Option[Window] =
    Room.offered(room, base.grantFor(until - from))(
      Window(from, base.install(from, until), 0))

  private def readAside(from: Int, until: Int): Window =
    Room.taking(room, base.grantFor(until - from)) {
      val rows = base.read(from, until)
      val bytes = rows.iterator.map(Packed.sizeOf(_)).sum
      aside.add(bytes)
      Window(from, rows, bytes)
    }
}

private[local] object BucketPass {

  /** Buckets that a pass reads. */
  trait Buckets {
    def buckets: Int

    /** Counts what a pass holds, until the pass is garbage. */
    private[local] def hold(aside: Aside): Unit

    /** Returns the rows of a bucket, which keeps its form; null where they are not here. */
    private[local] def unpackedHere(index: Int): RowBlock

    /** True if a read may wait for a file. */
    private[local] def isFromFile: Boolean

    /** Most buckets in one range of a file. */
    private[local] def rangeBuckets: Int

    /** First bucket from one on that is not here, or their number. */
    private[local] def nextMissing(from: Int): Int

    /** End of the buckets from one on that are not here. */
    private[local] def missingEnd(from: Int, most: Int): Int

    /** End of the buckets from one on that are not here, and that one read from Redis brings. */
    private[local] def gapEnd(from: Int): Int
    private[local] def grantFor(count: Int): Long
    private[local] def read(from: Int, until: Int): Array[RowBlock]

    /** Reads buckets, and keeps them. */
    private[local] def install(from: Int, until: Int): Array[RowBlock]
  }

  /** Number of buckets in one read that memory has no room for. */
  val AsideBuckets = 16

  /** Number of buckets in the first range of a file. */
  private val FirstBuckets = 64

  /** Ranges of files grow so, for a pass that ends early. */
  private val Growth = 4

  /** Bytes of rows that passes hold, and that are not in their base. */
  final class Aside {
    private val held = new AtomicLong
    def bytes: Long = held.get

    def add(bytes: Long): Unit = {
      held.addAndGet(bytes)
      ()
    }
  }

  /** Buckets from one on. */
  private final case class Window(from: Int, rows: Array[RowBlock], asideBytes: Long) {
    def has(index: Int): Boolean = index >= from && index - from < rows.length
    def of(index: Int): RowBlock = rows(index - from)
  }
  private val Empty = Window(0, Array.empty, 0)

  private final case class Range(from: Int, until: Int, task: FutureTask[Window]) {
    def has(index: Int): Boolean = index >= from && index < until
  }
}
