package org.redisstate.core.store

import java.nio.ByteBuffer

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.LimitException
import org.redisstate.core.local.Layer

/** Rows that pass the local disk, of which some buckets have far more than others. */
class SpilledRowsSuite extends AnyFunSuite {
  import SpilledRowsSuite._

  /** Rows with their hashes, each key once. */
  private def rowsOf(hashes: Seq[Int]): Seq[(Int, Array[Byte], Array[Byte])] = {
    val random = new Random(3)
    hashes.zipWithIndex.map { case (hash, i) =>
      (hash, ByteBuffer.allocate(4).putInt(i).array, random.nextBytes(ValueBytes))
    }
  }

  private def spilled(rows: Seq[(Int, Array[Byte], Array[Byte])], part: Long, bucket: Long) = {
    val all = new SpilledRows("write version 1", None, part, bucket)
    rows.grouped(rows.size / 3 + 1).foreach { some =>
      val layer = new Layer(16)
      some.foreach { case (hash, key, value) =>
        layer.put(hash, key, 0, key.length, value, 0, value.length)
      }
      all.add(layer)
    }
    all
  }

  private def found(rows: SpilledRows, buckets: Int): Seq[(Int, Int)] = {
    val all = Seq.newBuilder[(Int, Int)]
    var last = -1
    rows.foreachBucket(buckets) { (bucket, block) =>
      assert(bucket > last)
      last = bucket
      (0 until block.count).foreach(i =>
        all += bucket -> ByteBuffer.wrap(block.bytes, block.keyOffset(i), 4).getInt)
    }
    all.result().sorted
  }

  for (buckets <- Seq(1, 4, 256, 1 << 14))
    test(s"rows of a few keys that share a bucket come back, of $buckets buckets") {
      val random = new Random(5)
      val rows = rowsOf(Seq.fill(900)(random.nextInt()) ++ Seq.fill(100)(77))
      val wanted = rows.zipWithIndex.map { case ((hash, _, _), i) => (hash & (buckets - 1)) -> i }
      Seq(1L << 30, 16L << 10, 1L).foreach { part =>
        val all = spilled(rows, part, 1L << 30)
        try assert(found(all, buckets) == wanted.sorted)
        finally all.close()
      }
    }

  test("a bucket that is larger than an array is refused, with what to do") {
    val random = new Random(5)
    val rows = rowsOf(Seq.fill(900)(random.nextInt()) ++ Seq.fill(100)(77))
    val all = spilled(rows, part = 4L << 10, bucket = 8L << 10)
    try {
      val refused = intercept[LimitException](found(all, 1 << 14))
      assert(refused.getMessage.contains("write version 1"))
      assert(refused.getMessage.contains("one key take more than 8192 bytes"))
      assert(refused.getMessage.contains("more keys"))
    } finally all.close()
  }
}

object SpilledRowsSuite {
  private val ValueBytes = 100
}
