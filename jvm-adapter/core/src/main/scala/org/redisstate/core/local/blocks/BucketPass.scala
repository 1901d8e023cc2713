package org.redisstate.core.local.blocks

import java.util.concurrent.{ExecutionException, FutureTask}
import java.util.concurrent.atomic.AtomicLong

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.RowBlock

/**
 * Reads every bucket of a base once, in ascending order, for one thread. Compressed buckets stay
 * compressed; missing ones are read many at a time, and kept only while there is room. Files are
 * read in ranges, each while the previous range is used.
 */
private[local] final class BucketPass(base: BucketPass.Buckets, room: Room)
    extends (Int => RowBlock) {
  import BucketPass._

  private val aside = new Aside
  private var window = Empty

  /** Next range, which another thread reads. */
  private var following = Option.empty[Range]
  private var size = FirstBuckets
  base.hold(aside)

  override def apply(index: Int): RowBlock = {
    val rows = if (window.has(index)) window.of(index) else behindWindow(index)
    if (index == base.buckets - 1) {
      leaveWindow()
      following.foreach(abandon)
    }
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
    window.share.foreach(_.leave())
    window = Empty
  }

  private def rangeOf(index: Int): Window = {
    following.filter(_.until <= index).foreach(abandon)
    following match {
      // What was here when the next range began was dropped meanwhile.
      case Some(next) if index < next.from =>
        readRange(index, math.min(endOf(index), next.from), new Share(aside))
      case begun =>
        val come = begun.flatMap(rowsOf)
        val found = come.getOrElse(readRange(index, endOf(index), new Share(aside)))
        following = begin(base.nextMissing(found.from + found.rows.length))
        found
    }
  }

  /** Stops counting a range that is not needed, and cancels its read unless that has begun. */
  private def abandon(range: Range): Unit = {
    following = None
    range.share.leave()
    range.task.cancel(false)
    ()
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
    val share = new Share(aside)
    val range =
      Range(from, until, share, new FutureTask[Window](() => readRange(from, until, share)))
    room.begin(range.task)
    range
  }

  private def endOf(from: Int): Int =
    base.rangeEnd(from, math.min(base.buckets, from + math.min(size, base.rangeBuckets)))

  private def readNow(from: Int, until: Int): Window =
    kept(from, until).getOrElse(
      readAside(from, math.min(until, from + AsideBuckets), new Share(aside)))

  private def readRange(from: Int, until: Int, share: Share): Window =
    kept(from, until).getOrElse(readAside(from, until, share))

  private def kept(from: Int, until: Int): Option[Window] =
    Room.offered(room, base.grantFor(until - from))(
      Window(from, base.install(from, until), None))

  private def readAside(from: Int, until: Int, share: Share): Window =
    Room.taking(room, base.grantFor(until - from)) {
      val rows = base.read(from, until)
      share.hold(rows.iterator.map(Packed.sizeOf(_)).sum)
      Window(from, rows, Some(share))
    }
}

private[local] object BucketPass {

  /** Buckets that a pass reads. */
  trait Buckets {
    def buckets: Int

    /** Counts what a pass holds, until the pass is garbage. */
    private[local] def hold(aside: Aside): Unit

    /** Returns the rows of a bucket, which keeps its form; null if it is missing. */
    private[local] def unpackedHere(index: Int): RowBlock

    /** True if a read may wait for a file. */
    private[local] def isFromFile: Boolean

    /** Most buckets in one range of a file. */
    private[local] def rangeBuckets: Int

    /** Returns the first missing bucket from one on, or the number of buckets. */
    private[local] def nextMissing(from: Int): Int

    /**
     * Returns the end of the range of a file that begins with a missing bucket. The range may
     * include a few present buckets: many small ranges would be slower.
     */
    private[local] def rangeEnd(from: Int, most: Int): Int

    /** Returns the end of the missing buckets from one on that one read from Redis brings. */
    private[local] def gapEnd(from: Int): Int
    private[local] def grantFor(count: Int): Long
    private[local] def read(from: Int, until: Int): Array[RowBlock]

    /** Reads buckets, and keeps them. */
    private[local] def install(from: Int, until: Int): Array[RowBlock]
  }

  /** Number of buckets in a read for which memory has no room. */
  val AsideBuckets = 16

  /** Number of buckets in the first range of a file. */
  private val FirstBuckets = 64

  /** Factor by which ranges of files grow, since a pass may end early. */
  private val Growth = 4

  /** Bytes of rows that passes hold outside of their base. */
  final class Aside {
    private val held = new AtomicLong
    def bytes: Long = held.get

    def add(bytes: Long): Unit = {
      held.addAndGet(bytes)
      ()
    }
  }

  /** Bytes in `aside` of one range, which may be given up while another thread reads it. */
  private final class Share(aside: Aside) {
    @GuardedBy("this") private var held = 0L
    @GuardedBy("this") private var isLeft = false

    def hold(bytes: Long): Unit = synchronized {
      if (!isLeft) {
        held += bytes
        aside.add(bytes)
      }
    }

    def leave(): Unit = synchronized {
      isLeft = true
      aside.add(-held)
      held = 0L
    }
  }

  /**
   * Consecutive buckets.
   *
   * @param share None if the base keeps them
   */
  private final case class Window(from: Int, rows: Array[RowBlock], share: Option[Share]) {
    def has(index: Int): Boolean = index >= from && index - from < rows.length
    def of(index: Int): RowBlock = rows(index - from)
  }
  private val Empty = Window(0, Array.empty, None)

  private final case class Range(
      from: Int,
      until: Int,
      share: Share,
      task: FutureTask[Window])
}
