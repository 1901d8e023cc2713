package org.redisstate.core.local.blocks

import java.util.concurrent.FutureTask

/** Reserves the memory for rows from Redis, before they are read. Thread-safe. */
trait Room {

  /**
   * Grants bytes that a caller cannot do without; first drops rows that were not touched lately,
   * in the caller's thread. Never refuses, since one block has to fit for the caller to continue.
   */
  def take(bytes: Long): Unit

  /** Grants bytes if they are free; drops nothing. */
  def offer(bytes: Long): Boolean

  /** Most bytes of a range that a pass reads, and for which other rows may be dropped. */
  def rangeBytes: Long

  /** Submits a read of a file to another thread. A caller that needs it sooner runs it. */
  def begin(read: FutureTask[_]): Unit

  /** Returns a reservation, after the rows were counted elsewhere, or dropped. */
  def give(bytes: Long): Unit

  /** Returns whether there is room for more bytes of filters, which live as long as their rows. */
  def admits(bytes: Long): Boolean

  /** Counts a look-up for which a filter saved a read. */
  def filtered(): Unit

  /** Counts the time for which a caller waited for missing rows. */
  def missed(nanos: Long): Unit

  /** Counts blocks that were read a second time. */
  def readAgain(blocks: Int): Unit
}

object Room {

  /** Writers aim at 16 KiB or 128 rows a block, and each row has a place in an index. */
  val BlockBytesMax: Long = 17L << 10

  private val UnboundedRange = 16L << 20

  /** Room for rows that no store counts. */
  val Unbounded: Room = new Room {
    override def take(bytes: Long): Unit = ()
    override def offer(bytes: Long): Boolean = true
    override def rangeBytes: Long = UnboundedRange
    override def begin(read: FutureTask[_]): Unit = ()
    override def give(bytes: Long): Unit = ()
    override def admits(bytes: Long): Boolean = true
    override def filtered(): Unit = ()
    override def missed(nanos: Long): Unit = ()
    override def readAgain(blocks: Int): Unit = ()
  }

  /** Runs a read after a grant that is never refused. */
  def taking[A](room: Room, bytes: Long)(read: => A): A = {
    room.take(bytes)
    try read
    finally room.give(bytes)
  }

  /** Runs a read for which a caller waits. */
  def missing[A](room: Room)(read: => A): A = {
    val from = System.nanoTime()
    try read
    finally room.missed(System.nanoTime() - from)
  }

  /** Runs a read if there is room for it. */
  def offered[A](room: Room, bytes: Long)(read: => A): Option[A] =
    if (room.offer(bytes)) {
      try Some(read)
      finally room.give(bytes)
    } else None
}
