package org.redisstate.core.store.loading

import java.nio.ByteBuffer

import org.redisstate.core.format.{KeyLead, RowBlock}

/**
 * Sorts rows of several blocks by key; rows of one key stay in their order. Compares eight bytes of
 * each key as a number, from the first byte in which keys differ. Only where these are equal it
 * compares whole keys, whose blocks are seldom in the cache of the processor. Thread-safe.
 */
private[loading] final class ChangeSort(blocks: Array[RowBlock]) {
  import ChangeSort._

  private val filled = blocks.filter(_.count > 0)
  private val common = commonBytes

  /** True if two keys with equal leads are equal. */
  private val areLeadsWhole = filled.headOption.forall { first =>
    val length = first.keyLength(0)
    length <= common + KeyLead.Bytes && filled.forall(b => b.isFixed && b.keyLength(0) == length)
  }

  /** Rows in key order. */
  final class Sorted private[ChangeSort] (rows: Array[Long], leads: Array[Long]) {
    def length: Int = rows.length
    def apply(i: Int): Long = rows(i)

    /** Returns whether two of the rows have one key. */
    def isSame(i: Int, j: Int): Boolean = leads(i) == leads(j) && compare(rows(i), rows(j)) == 0
  }

  /** Returns the leads of a block's rows. */
  def leadsOf(index: Int): Array[Long] = {
    val block = blocks(index)
    val numbers = ByteBuffer.wrap(block.bytes)
    val leads = new Array[Long](block.count)
    var i = 0
    while (i < leads.length) {
      leads(i) =
        KeyLead.of(numbers, block.keyOffset(i) + common, block.keyLength(i) - common)
      i += 1
    }
    leads
  }

  /**
   * Sorts a part of an array of rows, each as `at` makes it.
   *
   * @param leads of the rows at the same places
   */
  def sorted(rows: Array[Long], leads: Array[Long], from: Int, until: Int): Sorted =
    mergeRuns(
      java.util.Arrays.copyOfRange(rows, from, until),
      java.util.Arrays.copyOfRange(leads, from, until))

  /** Number of leading bytes that all keys share: in a block those of its first and last one. */
  private def commonBytes: Int =
    filled.headOption.fold(0) { first =>
      filled.foldLeft(first.keyLength(0)) { (most, block) =>
        val one = sharedBytes(first, block, 0, most)
        sharedBytes(first, block, block.count - 1, one)
      }
    }

  /** Number of bytes, at most so many, that the first key of a block shares with one of another. */
  private def sharedBytes(first: RowBlock, block: RowBlock, row: Int, most: Int): Int = {
    val (from, at) = (first.keyOffset(0), block.keyOffset(row))
    val length = math.min(most, block.keyLength(row))
    val differs = java.util.Arrays.mismatch(
      first.bytes,
      from,
      from + length,
      block.bytes,
      at,
      at + length)
    if (differs < 0) length else differs
  }

  /** Compares the keys of two rows with equal leads. */
  private def compare(a: Long, b: Long): Int = if (areLeadsWhole) 0
  else {
    val (left, right) = (blocks(blockOf(a)), blocks(blockOf(b)))
    val (x, y) = (left.keyOffset(rowOf(a)), right.keyOffset(rowOf(b)))
    java.util.Arrays.compareUnsigned(
      left.bytes,
      x,
      x + left.keyLength(rowOf(a)),
      right.bytes,
      y,
      y + right.keyLength(rowOf(b)))
  }

  /** Merges runs of ascending keys, neighbours first: those of a block come in key order. */
  private def mergeRuns(rows: Array[Long], leads: Array[Long]): Sorted = {
    var ends = runs(rows, leads)
    var (fromRows, fromLeads) = (rows, leads)
    var (toRows, toLeads) = (new Array[Long](rows.length), new Array[Long](rows.length))
    while (ends.length > 1) {
      val merged = new Array[Int]((ends.length + 1) / 2)
      var low, run = 0
      while (run < ends.length) {
        val middle = ends(run)
        val high = if (run + 1 < ends.length) ends(run + 1) else middle
        merge(fromRows, fromLeads, low, middle, high, toRows, toLeads)
        merged(run / 2) = high
        low = high
        run += 2
      }
      ends = merged
      val (rowsRead, leadsRead) = (fromRows, fromLeads)
      fromRows = toRows
      fromLeads = toLeads
      toRows = rowsRead
      toLeads = leadsRead
    }
    new Sorted(fromRows, fromLeads)
  }

  /** Ends of the runs in which no key is above the next one. */
  private def runs(rows: Array[Long], leads: Array[Long]): Array[Int] = {
    val ends = Array.newBuilder[Int]
    var i = 1
    while (i < rows.length) {
      if (isAbove(leads(i - 1), rows(i - 1), leads(i), rows(i))) ends += i
      i += 1
    }
    ends += rows.length
    ends.result()
  }

  private def merge(
      rows: Array[Long],
      leads: Array[Long],
      low: Int,
      middle: Int,
      high: Int,
      toRows: Array[Long],
      toLeads: Array[Long]): Unit = {
    var i, to = low
    var j = middle
    while (to < high) {
      val takesRight = j < high && (i >= middle || isAbove(leads(i), rows(i), leads(j), rows(j)))
      val next = if (takesRight) j else i
      toRows(to) = rows(next)
      toLeads(to) = leads(next)
      if (takesRight) j += 1 else i += 1
      to += 1
    }
  }

  private def isAbove(leadA: Long, a: Long, leadB: Long, b: Long): Boolean =
    if (leadA != leadB) leadA > leadB else compare(a, b) > 0
}

private[loading] object ChangeSort {
  private final val BlockShift = 32

  /** The row of a block, as a number. */
  def at(block: Int, row: Int): Long = (block.toLong << BlockShift) | row
  def blockOf(at: Long): Int = (at >>> BlockShift).toInt
  def rowOf(at: Long): Int = at.toInt
}
