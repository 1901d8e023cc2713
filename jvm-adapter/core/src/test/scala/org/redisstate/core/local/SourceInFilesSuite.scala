package org.redisstate.core.local

import java.util.concurrent.FutureTask

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.{RowBlock, RowFilter}
import org.redisstate.core.local.blocks.Room

/** A base in a file whose buckets come and go during a pass; and the filter of its source. */
class SourceInFilesSuite extends AnyFunSuite {
  import SourceInFilesSuite._

  test("buckets that make way before a range that is read ahead are read alone") {
    val source = new Counted
    val base = Base.remote(Buckets, source, room = new FullRoom)
    val here = 200 until 220
    here.foreach(i => assert(base.bucket(i).count == 1))
    val pass = base.pass()
    (0 until here.start).foreach(i => assert(pass(i).count == 1))
    forget(base)
    (here.start until Buckets).foreach(i => assert(pass(i).count == 1))
    assert(source.reads.toSeq == (0 until Buckets).map(i => if (here.contains(i)) 2 else 1))
    assert(base.memoryBytes == emptyBytes)
  }

  test("single buckets in memory do not make the ranges of a pass small") {
    val source = new Counted
    val base = Base.remote(Buckets, source, room = new FullRoom)
    (0 until Buckets by 8).foreach(i => assert(base.bucket(i).count == 1))
    val before = source.ranges
    val pass = base.pass()
    (0 until Buckets).foreach(i => assert(pass(i).count == 1))
    assert(source.ranges - before <= 4)
  }

  test("a range that was read ahead, and that nobody uses, is not counted") {
    val base = Base.remote(Buckets, new Counted, room = new FullRoom)
    val pass = base.pass()
    (0 until 64).foreach(i => assert(pass(i).count == 1))
    (64 until Buckets).foreach(i => assert(base.bucket(i).count == 1))
    (64 until Buckets).foreach(i => assert(pass(i).count == 1))
    forget(base)
    assert(base.memoryBytes == emptyBytes)
  }

  test("a filter that could not be read is read again once rows could") {
    var answers = List(RowFilter.Unread, RowFilter.Nothing)
    val source = new Counted {
      override def filter(): RowFilter = {
        val next = answers.head
        answers = answers.tail
        next
      }
    }
    val base = Base.remote(Buckets, source, room = new FullRoom)
    assert(!base.denies(1) && !base.denies(1) && answers.size == 1)
    assert(base.bucket(0).count == 1)
    assert(base.denies(1) && base.denies(2))
  }
}

private object SourceInFilesSuite {
  private val Buckets = 512

  private val block: RowBlock = {
    val rows = new RowBlock.Builder(64)
    val key = Array[Byte](0, 0, 1)
    rows.add(key, 0, key.length, key, 0, key.length)
    rows.result()
  }

  private def emptyBytes: Long = Base.remote(Buckets, new Counted).memoryBytes

  private def forget(base: Base): Unit = {
    base.compress(Long.MaxValue, everything = true)
    base.drop(Long.MaxValue)
    ()
  }

  /** Buckets of one row in a file. */
  private class Counted extends BucketSource {
    val reads = new Array[Int](Buckets)
    var ranges = 0

    override def read(from: Int, until: Int): Array[RowBlock] = {
      ranges += 1
      (from until until).foreach(i => reads(i) += 1)
      Array.fill(until - from)(block)
    }
    override def isInFiles: Boolean = true
  }

  /** Room in which nothing is free; what is read ahead is read at once. */
  private final class FullRoom extends Room {
    override def take(bytes: Long): Unit = ()
    override def offer(bytes: Long): Boolean = false
    override def rangeBytes: Long = 16L << 20
    override def begin(read: FutureTask[_]): Unit = read.run()
    override def give(bytes: Long): Unit = ()
    override def admits(bytes: Long): Boolean = true
    override def filtered(): Unit = ()
    override def missed(nanos: Long): Unit = ()
    override def readAgain(blocks: Int): Unit = ()
  }
}
