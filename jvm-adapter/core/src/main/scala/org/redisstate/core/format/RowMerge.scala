package org.redisstate.core.format

/** Merges sorted rows. */
object RowMerge {

  /**
   * Rows of both; those of `newer` override.
   *
   * @param resolve `older` is all there is below: removals of `newer` leave nothing, appended
   *   elements become the value
   */
  def merge(older: RowBlock, newer: RowBlock, resolve: Boolean): RowBlock = {
    val found = older.findAll(newer)
    if (older.canReplace(newer, found)) older.replaced(newer, found)
    else merge(older, newer, found, resolve)
  }

  /** @param found places of the keys of `newer` in `older` */
  private def merge(
      older: RowBlock,
      newer: RowBlock,
      found: Array[Int],
      resolve: Boolean): RowBlock = {
    val out = new RowBlock.Builder(older.bytes.length + newer.bytes.length)
    var i, j = 0
    while (j < newer.count) {
      val at = found(j)
      val until = if (at >= 0) at else -1 - at
      out.addRun(older, i, until)
      addNewer(out, older, at, newer, j, resolve)
      i = if (at >= 0) at + 1 else until
      j += 1
    }
    out.addRun(older, i, older.count)
    out.result()
  }

  private def addNewer(
      out: RowBlock.Builder,
      older: RowBlock,
      i: Int,
      newer: RowBlock,
      j: Int,
      resolve: Boolean): Unit =
    if (!newer.isAppended(j)) {
      if (!(resolve && newer.isRemoved(j))) out.addFrom(newer, j)
    } else if (i >= 0 && !older.isRemoved(i)) out.addJoined(older, i, newer, j)
    else if (i >= 0 || resolve) {
      val key = newer.keyOffset(j)
      out.add(
        newer.bytes,
        key,
        newer.keyLength(j),
        newer.bytes,
        newer.valueOffset(j),
        newer.valueLength(j))
    } else out.addFrom(newer, j)
}
