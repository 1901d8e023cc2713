package org.redisstate.core.store.loading

import org.redisstate.core.format.{Bucketing, RowBlock, RowMerge}

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

  /** Beginnings of their keys, by which they are sorted. */
  private val leads = new Array[Long](entries.length)
  private val order = new ChangeSort(blocks.map(_.rows))
  group()

  /** Bytes of the rows and of what groups them. */
  val bytes: Long =
    blocks.iterator.map(_.rows.memoryBytes).sum + 16L * entries.length + 4L * buckets

  /** Returns whether a bucket has changes of a hash, without sorting them. */
  def has(index: Int, hash: Int): Boolean = {
    val until = starts(index + 1)
    var i = starts(index)
    while (i < until && hashOf(entries(i)) != hash) i += 1
    i < until
  }

  /** All changes of a bucket in key order; elements that several deltas append stand together. */
  def bucket(index: Int): RowBlock =
    if (starts(index) == starts(index + 1)) RowBlock.Empty
    else {
      val sorted = order.sorted(entries, leads, starts(index), starts(index + 1))
      val rows = new RowBlock.Builder(RowBytes * sorted.length)
      var from = 0
      while (from < sorted.length) {
        var until = from + 1
        while (until < sorted.length && sorted.isSame(from, until)) until += 1
        addNewest(rows, sorted, from, until)
        from = until
      }
      rows.result()
    }

  private def group(): Unit = {
    blocks.foreach { block =>
      var i = 0
      while (i < block.hashes.length) {
        starts(Bucketing.bucket(block.hashes(i), buckets) + 1) += 1
        i += 1
      }
    }
    (0 until buckets).foreach(b => starts(b + 1) += starts(b))
    val next = starts.clone()
    blocks.indices.foreach(group(_, next))
  }

  /** @param next place of the next row of each bucket */
  private def group(block: Int, next: Array[Int]): Unit = {
    val hashes = blocks(block).hashes
    val leadsOf = order.leadsOf(block)
    var i = 0
    while (i < hashes.length) {
      val bucket = Bucketing.bucket(hashes(i), buckets)
      entries(next(bucket)) = ChangeSort.at(block, i)
      leads(next(bucket)) = leadsOf(i)
      next(bucket) += 1
      i += 1
    }
  }

  /** Adds what the entries [from, until) of one key say together. */
  private def addNewest(
      rows: RowBlock.Builder,
      sorted: ChangeSort#Sorted,
      from: Int,
      until: Int): Unit = {
    val newest = sorted(until - 1)
    if (until - from == 1 || !blockOf(newest).isAppended(rowOf(newest)))
      rows.addFrom(blockOf(newest), rowOf(newest))
    else {
      val all = (from until until).map(i => single(sorted(i)))
      rows.addFrom(all.reduceLeft(RowMerge.merge(_, _, resolve = false)), 0)
    }
  }

  private def single(entry: Long): RowBlock = {
    val row = new RowBlock.Builder(RowBytes)
    row.addFrom(blockOf(entry), rowOf(entry))
    row.result()
  }

  private def hashOf(entry: Long): Int =
    blocks(ChangeSort.blockOf(entry)).hashes(ChangeSort.rowOf(entry))
  private def blockOf(entry: Long): RowBlock = blocks(ChangeSort.blockOf(entry)).rows
  private def rowOf(entry: Long): Int = ChangeSort.rowOf(entry)
}

private object ChangedRows {
  private val RowBytes = 64
}
