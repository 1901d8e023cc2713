package org.redisstate.core.local

/**
 * Limits on the size of layers.
 *
 * @param writeSetMax bytes of the changes of one batch in one partition
 * @param mergedMax bytes of layers that are merged into one, or built from several segments
 */
final case class LayerSizes(writeSetMax: Long, mergedMax: Long)

object LayerSizes {

  /**
   * A write set fits into one layer when it is loaded; half of a layer leaves room to merge others.
   */
  val Default: LayerSizes = LayerSizes(Layer.BytesMax, Layer.BytesMax / 2)
}
