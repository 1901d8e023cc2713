package org.redisstate.core.local

/**
 * Limits on the size of layers.
 *
 * @param writeSetMax bytes of the changes of one batch in one partition
 * @param mergedMax bytes of layers that are still brought into one, or built of several segments
 */
final case class LayerSizes(writeSetMax: Long, mergedMax: Long)

object LayerSizes {

  /** A write set fits into one layer when it is read again, and half of a layer is room to merge some. */
  val Default: LayerSizes = LayerSizes(Layer.BytesMax, Layer.BytesMax / 2)
}
