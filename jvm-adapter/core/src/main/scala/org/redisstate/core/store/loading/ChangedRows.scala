package org.redisstate.core.store.loading

import java.util.Comparator

import org.redisstate.core.format.{Bucketing, RowBlock}

/**
 * Rows of deltas, grouped by bucket. Nothing is copied before a bucket is asked for.
 *
 * @param blocks of all deltas, oldest first
 */
private[store] final class ChangedRows(blocks: Array[WholeBlock], buckets: Int) {
  import ChangedRows._

  /** First entry of each bucket, and the end of the last one. */
  private val starts = new Array[Int](buckets + 1)

  /** The number of a block and of a row in it; in each bucket oldest blocks first. */
  private val entries = new Array[Long](blocks.iterator.map(_.rows.count).sum)
  private val byKey: Comparator[java.lang.Long] = (a, b) => compare(a, b)
  group()

  /** Bytes of the rows and of what groups them. */
  val bytes: Long = blocks.iterator.map(_.rows.memoryBytes).sum + 8L * entries.length + 4L * buckets

  /** All changes of a bucket in key order; elements that several deltas append stand together. */
  def bucket(index: Int): RowBlock =
    if (starts(index) == starts(index + 1)) RowBlock.Empty
    else {
      val sorted = sortedEntries(starts(index), starts(index + 1))
      val rows = new RowBlock.Builder(RowBytes * sorted.length)
      var from = 0
      while (from < sorted.length) {
        var until = from + 1
        while (until < sorted.length && compare(sorted(from), sorted(until)) == 0) until += 1
        addNewest(rows, sorted, from, until)
        from = until
      }
      rows.result()
    }

  private def group(): Unit = {
    foreachRow((bucket, _) => starts(bucket + 1) += 1)
    (0 until buckets).foreach(b => starts(b + 1) += starts(b))
    val next = starts.clone()
    foreachRow { (bucket, entry) =>
      entries(next(bucket)) = entry
      next(bucket) += 1
    }
  }

  private def foreachRow(use: (Int, Long) => Unit): Unit =
    blocks.indices.foreach { b =>
      val hashes = blocks(b).hashes
      var i = 0
      while (i < hashes.length) {
        use(Bucketing.bucket(hashes(i), buckets), (b.toLong << BlockShift) | i)
        i += 1
      }
    }

  /** Entries by key; of a key, older ones first: the sort is stable, and fast for runs in order. */
  private def sortedEntries(from: Int, until: Int): Array[java.lang.Long] = {
    val sorted = Array.tabulate[java.lang.Long](until - from)(i => entries(from + i))
    java.util.Arrays.sort(sorted, byKey)
    sorted
  }

  private def compare(a: Long, b: Long): Int = {
    val (left, i) = (blockOf(a), rowOf(a))
    val (right, j) = (blockOf(b), rowOf(b))
    val (at, other) = (left.keyOffset(i), right.keyOffset(j))
    java.util.Arrays.compareUnsigned(
      left.bytes,
      at,
      at + left.keyLength(i),
      right.bytes,
      other,
      other + right.keyLength(j))
  }

  /** Adds what the entries [from, until) of one key say together. */
  private def addNewest(
      rows: RowBlock.Builder,
      sorted: Array[java.lang.Long],
      from: Int,
      until: Int): Unit = {
    val newest = sorted(until - 1)
    if (until - from == 1 || !blockOf(newest).isAppended(rowOf(newest)))
      rows.addFrom(blockOf(newest), rowOf(newest))
    else {
      val all = (from until until).map(i => single(sorted(i)))
      rows.addFrom(all.reduceLeft(RowBlock.merge(_, _, resolve = false)), 0)
    }
  }

  private def single(entry: Long): RowBlock = {
    val row = new RowBlock.Builder(RowBytes)
    row.addFrom(blockOf(entry), rowOf(entry))
    row.result()
  }

  private def blockOf(entry: Long): RowBlock = blocks((entry >>> BlockShift).toInt).rows
  private def rowOf(entry: Long): Int = entry.toInt
}

private object ChangedRows {
  private final val BlockShift = 32
  private val RowBytes = 64
}
