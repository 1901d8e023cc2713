package org.redisstate.core.local

import scala.collection.mutable

/** Rows found by a scan, as places in immutable arrays. */
private[local] final class RowList {
  import RowList._

  private val arrays = mutable.ArrayBuffer.empty[Array[Byte]]
  private var places = new Array[Int](16 * PlaceInts)

  def add(keyArray: Array[Byte], keyOffset: Int, keyLength: Int, value: Slice): Unit = {
    val at = arrays.length / 2 * PlaceInts
    if (at == places.length) places = java.util.Arrays.copyOf(places, at * 2)
    places(at) = keyOffset
    places(at + 1) = keyLength
    places(at + 2) = value.offset
    places(at + 3) = value.length
    arrays += keyArray
    arrays += value.array
    ()
  }

  def size: Int = arrays.length / 2

  def sorted: RowList = if (isSorted) this else sortedCopy

  private def isSorted: Boolean = {
    var i = 1
    while (i < size && compareKeys(i - 1, i) < 0) i += 1
    i >= size
  }

  private def sortedCopy: RowList = {
    val order = Array.tabulate[Integer](size)(i => i)
    java.util.Arrays.sort(order, (a: Integer, b: Integer) => compareKeys(a, b))
    val all = new RowList
    val value = new Slice
    order.foreach { boxed =>
      val i: Int = boxed
      value.set(arrays(2 * i + 1), places(i * PlaceInts + 2), places(i * PlaceInts + 3))
      all.add(arrays(2 * i), places(i * PlaceInts), places(i * PlaceInts + 1), value)
    }
    all
  }

  private def compareKeys(a: Int, b: Int): Int = {
    val x = places(a * PlaceInts)
    val y = places(b * PlaceInts)
    java.util.Arrays.compareUnsigned(
      arrays(2 * a),
      x,
      x + places(a * PlaceInts + 1),
      arrays(2 * b),
      y,
      y + places(b * PlaceInts + 1))
  }

  def iterator: RowIterator = new RowIterator {
    private var i = 0
    override def next(key: Slice, value: Slice): Boolean =
      if (i == RowList.this.size) false
      else {
        val at = i * PlaceInts
        key.set(arrays(2 * i), places(at), places(at + 1))
        value.set(arrays(2 * i + 1), places(at + 2), places(at + 3))
        i += 1
        true
      }
  }
}

private[local] object RowList {
  private val PlaceInts = 4
}
