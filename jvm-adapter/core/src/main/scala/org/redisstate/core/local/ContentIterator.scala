package org.redisstate.core.local

import org.redisstate.core.format.RowBlock

/** Rows found by a scan, as places in immutable arrays. */
private[local] final class RowList {
  private val arrays = scala.collection.mutable.ArrayBuffer.empty[Array[Byte]]
  private val places = scala.collection.mutable.ArrayBuffer.empty[(Int, Int, Int, Int)]

  def add(bytes: Array[Byte], keyOffset: Int, keyLength: Int, valueOffset: Int, valueLength: Int): Unit = {
    arrays += bytes
    places += ((keyOffset, keyLength, valueOffset, valueLength))
  }

  def iterator: RowIterator = new RowIterator {
    private var i = 0
    override def next(key: Slice, value: Slice): Boolean =
      if (i == arrays.length) false
      else {
        val (keyOffset, keyLength, valueOffset, valueLength) = places(i)
        key.set(arrays(i), keyOffset, keyLength)
        value.set(arrays(i), valueOffset, valueLength)
        i += 1
        true
      }
  }
}

/** First the layers, newest first, then the base; a row that a newer layer has is passed over. */
private[local] final class ContentIterator(content: Content, family: Int, hashOf: KeyHash) extends RowIterator {
  private var newer: List[Layer] = Nil
  private var rest = content.layers
  private var cleared = false
  private var entries: Array[Int] = if (rest.nonEmpty) rest.head.entries() else Array.emptyIntArray
  private var entry = 0
  private var bucket = -1
  private var rows: RowBlock = RowBlock.Empty
  private var row = 0

  override def next(key: Slice, value: Slice): Boolean = nextOfLayers(key, value) || nextOfBase(key, value)

  private def nextOfLayers(key: Slice, value: Slice): Boolean = {
    while (rest.nonEmpty && !cleared) {
      val layer = rest.head
      while (entry < entries.length) {
        val at = entries(entry)
        entry += 1
        val bytes = layer.bytes
        if (Layer.familyOf(bytes, layer.keyOffset(at)) == family && !layer.isRemoved(at) &&
          !overridden(newer, layer.hashOf(at), bytes, layer.keyOffset(at), layer.keyLength(at))) {
          layer.key(at, key)
          layer.value(at, value)
          return true
        }
      }
      cleared = layer.clearedFamilies(family)
      newer = layer :: newer
      rest = rest.tail
      entries = if (rest.nonEmpty) rest.head.entries() else Array.emptyIntArray
      entry = 0
    }
    false
  }

  private def nextOfBase(key: Slice, value: Slice): Boolean = {
    while (!cleared) {
      while (row < rows.count) {
        val i = row
        row += 1
        val offset = rows.keyOffset(i)
        val length = rows.keyLength(i)
        if (Layer.familyOf(rows.bytes, offset) == family &&
          (newer.isEmpty || !overridden(newer, hashOf(rows.bytes, offset, length), rows.bytes, offset, length))) {
          key.set(rows.bytes, offset, length)
          value.set(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
          return true
        }
      }
      bucket += 1
      if (bucket >= content.base.buckets) cleared = true
      else {
        rows = content.base.bucket(bucket)
        row = 0
      }
    }
    false
  }

  private def overridden(layers: List[Layer], hash: Int, key: Array[Byte], offset: Int, length: Int): Boolean = {
    var left = layers
    while (left.nonEmpty) {
      if (left.head.find(hash, key, offset, length) >= 0) return true
      left = left.tail
    }
    false
  }
}
