package org.redisstate.core.local

/**
 * Entries of a layer by the hash of their bucketing bytes, for prefix scans. Replaced entries stay.
 * Grows in one thread; readable by any thread once the layer does not change.
 */
private[local] final class PrefixIndex(layer: Arena, all: Array[Int]) {
  private var items = new Array[Int](64)
  private var nexts = new Array[Int](64)
  private var heads = new Array[Int](64)
  private var size = 0

  all.foreach(add)

  def add(entry: Int): Unit = {
    if (size == items.length) grow()
    items(size) = entry
    link(size)
    size += 1
  }

  /** First place of a hash, then the next: -1 at the end. Other hashes are among them. */
  def first(hash: Int): Int = heads(slot(hash)) - 1
  def next(place: Int): Int = nexts(place) - 1
  def entry(place: Int): Int = items(place)

  private def link(place: Int): Unit = {
    val head = slot(layer.hashOf(items(place)))
    nexts(place) = heads(head)
    heads(head) = place + 1
  }

  private def grow(): Unit = {
    items = java.util.Arrays.copyOf(items, size * 2)
    nexts = new Array[Int](size * 2)
    heads = new Array[Int](size * 2)
    (0 until size).foreach(link)
  }

  private def slot(hash: Int): Int = {
    val mixed = hash * 0x9e3779b9
    (mixed ^ (mixed >>> 16)) & (heads.length - 1)
  }
}
