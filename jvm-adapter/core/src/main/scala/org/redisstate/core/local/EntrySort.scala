package org.redisstate.core.local

import java.nio.ByteBuffer

import org.redisstate.core.format.KeyLead

/**
 * Sorts entries of a layer by key. Compares eight bytes of each key as a number, from the first
 * byte in which the keys differ; whole keys only where those are equal. For one thread; the arrays
 * are reused.
 */
private[local] final class EntrySort(layer: Arena) {
  import EntrySort._

  private val bytes = layer.bytes
  private val numbers = ByteBuffer.wrap(bytes)
  private var leads = new Array[Long](256)
  private var entries: Array[Int] = _

  /** Sorts `all` from `from` until `until`. */
  def sort(all: Array[Int], from: Int, until: Int): Unit = if (until - from > 1) {
    entries = all
    if (leads.length < all.length) leads = new Array[Long](all.length)
    val common = commonBytes(from, until)
    var i = from
    while (i < until) {
      val entry = all(i)
      leads(i) =
        KeyLead.of(numbers, layer.keyOffset(entry) + common, layer.keyLength(entry) - common)
      i += 1
    }
    quicksort(from, until - 1)
  }

  /** Number of leading bytes that all keys share. */
  private def commonBytes(from: Int, until: Int): Int = {
    val first = layer.keyOffset(entries(from))
    var common = layer.keyLength(entries(from))
    var i = from + 1
    while (i < until && common > 0) {
      val at = layer.keyOffset(entries(i))
      val length = math.min(common, layer.keyLength(entries(i)))
      val differs =
        java.util.Arrays.mismatch(bytes, first, first + length, bytes, at, at + length)
      common = if (differs < 0) length else differs
      i += 1
    }
    common
  }

  private def compare(leadA: Long, a: Int, leadB: Long, b: Int): Int =
    if (leadA != leadB) java.lang.Long.compare(leadA, leadB)
    else {
      val x = layer.keyOffset(a)
      val y = layer.keyOffset(b)
      java.util.Arrays.compareUnsigned(
        bytes,
        x,
        x + layer.keyLength(a),
        bytes,
        y,
        y + layer.keyLength(b))
    }

  private def quicksort(lowest: Int, highest: Int): Unit = {
    var low = lowest
    var high = highest
    while (high - low > InsertionMax) {
      val middle = (low + high) >>> 1
      val pivot = entries(middle)
      val pivotLead = leads(middle)
      var i = low
      var j = high
      while (i <= j) {
        while (compare(leads(i), entries(i), pivotLead, pivot) < 0) i += 1
        while (compare(leads(j), entries(j), pivotLead, pivot) > 0) j -= 1
        if (i <= j) {
          swap(i, j)
          i += 1
          j -= 1
        }
      }
      if (j - low < high - i) { quicksort(low, j); low = i }
      else { quicksort(i, high); high = j }
    }
    insertionSort(low, high)
  }

  private def swap(i: Int, j: Int): Unit = {
    val entry = entries(i)
    entries(i) = entries(j)
    entries(j) = entry
    val lead = leads(i)
    leads(i) = leads(j)
    leads(j) = lead
  }

  private def insertionSort(low: Int, high: Int): Unit = {
    var i = low + 1
    while (i <= high) {
      val entry = entries(i)
      val lead = leads(i)
      var j = i - 1
      while (j >= low && compare(leads(j), entries(j), lead, entry) > 0) {
        entries(j + 1) = entries(j)
        leads(j + 1) = leads(j)
        j -= 1
      }
      entries(j + 1) = entry
      leads(j + 1) = lead
      i += 1
    }
  }
}

private object EntrySort {
  private final val InsertionMax = 12
}
