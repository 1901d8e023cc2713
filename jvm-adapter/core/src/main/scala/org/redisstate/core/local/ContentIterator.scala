package org.redisstate.core.local

import org.redisstate.core.format.RowBlock

/**
 * Iterates over all rows of a version: first the layers, newest first, then the base. A row that a
 * newer layer changed is skipped.
 */
private[local] final class ContentIterator(
    layers: List[Layer],
    base: Base,
    family: Int,
    hashOf: KeyHash)
    extends RowIterator {
  private var newer: List[Layer] = Nil
  private var rest = layers
  private var entries: Array[Int] = if (rest.nonEmpty) rest.head.entries() else Array.emptyIntArray
  private var entry = 0
  private val bucketRows = base.pass()
  private var bucket = -1
  private var rows: RowBlock = RowBlock.Empty
  private var row = 0

  override def next(key: Slice, value: Slice): Boolean =
    nextOfLayers(key, value) || nextOfBase(key, value)

  private def nextOfLayers(key: Slice, value: Slice): Boolean = {
    while (rest.nonEmpty) {
      val layer = rest.head
      while (entry < entries.length) {
        val at = entries(entry)
        entry += 1
        val bytes = layer.bytes
        if (StoredKey.familyOf(bytes, layer.keyOffset(at)) == family && !layer.isRemoved(at) &&
          !Layers.hidden(
            newer,
            layer.hashOf(at),
            bytes,
            layer.keyOffset(at),
            layer.keyLength(at))) {
          layer.key(at, key)
          Layers.value(rest, base, at, value)
          return true
        }
      }
      newer = layer :: newer
      rest = rest.tail
      entries = if (rest.nonEmpty) rest.head.entries() else Array.emptyIntArray
      entry = 0
    }
    false
  }

  private def nextOfBase(key: Slice, value: Slice): Boolean = {
    while (bucket < base.buckets) {
      while (row < rows.count) {
        val i = row
        row += 1
        val offset = rows.keyOffset(i)
        val length = rows.keyLength(i)
        if (StoredKey.familyOf(rows.bytes, offset) == family &&
          (newer.isEmpty ||
            !Layers.hidden(
              newer,
              hashOf(rows.bytes, offset, length),
              rows.bytes,
              offset,
              length))) {
          key.set(rows.bytes, offset, length)
          value.set(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
          return true
        }
      }
      bucket += 1
      row = 0
      rows = if (bucket < base.buckets) bucketRows(bucket) else RowBlock.Empty
    }
    false
  }
}
