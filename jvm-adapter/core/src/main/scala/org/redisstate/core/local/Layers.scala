package org.redisstate.core.local

/** Combines layers, newest first, over a base. */
object Layers {

  /** Returns the value of a key in layers over a base. */
  def get(
      layers: List[Layer],
      base: Base,
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int,
      out: Slice): Boolean = {
    var rest = layers
    while (rest ne Nil) {
      val layer = rest.head
      val entry = layer.find(hash, key, offset, length)
      if (entry >= 0) {
        if (layer.isRemoved(entry)) return false
        value(rest, base, entry, out)
        return true
      }
      if (!layer.clearsNothing && layer.isCleared(key, offset, length)) return false
      rest = rest.tail
    }
    val rows = base.rowsFor(hash, key, offset, length)
    val found = rows.find(key, offset, length)
    if (found >= 0) out.set(rows.bytes, rows.valueOffset(found), rows.valueLength(found))
    found >= 0
  }

  /** Returns whether layers alone decide the value of a key, so that the base is not needed. */
  def decide(
      layers: List[Layer],
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int): Boolean = {
    var rest = layers
    while (rest ne Nil) {
      val entry = rest.head.find(hash, key, offset, length)
      if (entry >= 0 && !rest.head.isAppended(entry)) return true
      if (!rest.head.clearsNothing && rest.head.isCleared(key, offset, length)) return true
      rest = rest.tail
    }
    false
  }

  /**
   * Returns the bytes of the value of a key, those of all parts for a list, without reading them.
   *
   * @param below bytes of the value below the layers, or -1
   * @return -1 if the key does not exist
   */
  def valueBytes(
      layers: List[Layer],
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int)(below: => Long): Long = {
    var found = -1L
    var rest = layers
    while (rest ne Nil) {
      val layer = rest.head
      val entry = layer.find(hash, key, offset, length)
      if (entry >= 0) {
        if (layer.isRemoved(entry)) return found
        found = math.max(0, found) + layer.valueLength(entry)
        if (!layer.isAppended(entry)) return found
      }
      if (!layer.clearsNothing && layer.isCleared(key, offset, length)) return found
      rest = rest.tail
    }
    val older = below
    if (older < 0) found else math.max(0, found) + older
  }

  /** Reads the whole value of an entry of the first of these layers; the entry is not a removal. */
  private[local] def value(from: List[Layer], base: Base, entry: Int, out: Slice): Unit = {
    val layer = from.head
    if (layer.isAppended(entry)) join(from, base, entry, out) else layer.value(entry, out)
  }

  private def join(from: List[Layer], base: Base, entry: Int, out: Slice): Unit = {
    val layer = from.head
    val key = layer.keyOffset(entry)
    val length = layer.keyLength(entry)
    val older = new Slice
    val known = !layer.isCleared(layer.bytes, key, length) &&
      get(from.tail, base, layer.hashOf(entry), layer.bytes, key, length, older)
    layer.value(entry, out)
    if (known) {
      val joined = new Array[Byte](older.length + out.length)
      System.arraycopy(older.array, older.offset, joined, 0, older.length)
      System.arraycopy(out.array, out.offset, joined, older.length, out.length)
      out.set(joined, 0, joined.length)
    }
  }

  /** Returns whether a newer layer decides the value of a key. */
  private[local] def hidden(
      newer: List[Layer],
      hash: Int,
      key: Array[Byte],
      offset: Int,
      length: Int): Boolean = {
    var rest = newer
    while (rest ne Nil) {
      if (rest.head.hides(hash, key, offset, length)) return true
      rest = rest.tail
    }
    false
  }
}
