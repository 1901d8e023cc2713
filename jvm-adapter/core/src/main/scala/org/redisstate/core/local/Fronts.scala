package org.redisstate.core.local

import java.util.Arrays.compareUnsigned

/**
 * Lower bounds of the keys of ordered families. Timers and expired rows are removed from the front:
 * without a bound, each scan for the first rows would pass everything that was removed since the
 * base was made. Immutable.
 *
 * @param keys by family, a stored key below which there was no row before the layers `above` came
 */
private[local] final class Fronts private (
    keys: Map[Int, Array[Byte]],
    above: List[Layer]) {
  import Fronts._

  /** Returns the bound of a family; null if none is known. */
  def of(family: Int): Array[Byte] =
    keys.get(family).fold[Array[Byte]](null)(above.foldLeft(_)(lowered(family, _, _)))

  /** Returns the bounds with these layers on top. */
  def under(newest: List[Layer]): Fronts =
    if (keys.isEmpty) this
    else if (above.length + newest.length > AboveMax) None
    else new Fronts(keys, newest ::: above)

  def updated(family: Int, key: Array[Byte]): Fronts =
    new Fronts(
      keys.map { case (known, _) => known -> of(known) }.updated(family, key),
      Nil)
}

private[local] object Fronts {

  /** Most layers above a bound: families that nobody scans any more must not keep layers alive. */
  private val AboveMax = 16

  val None: Fronts = new Fronts(Map.empty, Nil)

  /** Returns the bound, or the least key of the family that a layer adds below it. */
  private def lowered(family: Int, front: Array[Byte], layer: Layer): Array[Byte] = {
    val entries = layer.sorted(family)
    var i = 0
    while (i < entries.length) {
      val at = layer.keyOffset(entries(i))
      val end = at + layer.keyLength(entries(i))
      if (compareUnsigned(layer.bytes, at, end, front, 0, front.length) >= 0) return front
      if (!layer.isRemoved(entries(i)))
        return java.util.Arrays.copyOfRange(layer.bytes, at, end)
      i += 1
    }
    front
  }
}
