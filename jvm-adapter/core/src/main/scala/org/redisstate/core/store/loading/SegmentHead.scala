package org.redisstate.core.store.loading

import org.redisstate.core.format.{EncodedField, Family, Header, Segment}

/**
 * Description of a segment.
 *
 * @param block of the header, null when there is none
 */
private[store] final case class SegmentHead(
    segment: Segment,
    header: Header,
    block: Array[Byte]) {
  def field: Option[EncodedField] = Option(block).map(EncodedField(Header.Field, _))
}

/**
 * A segment that becomes rows of a layer.
 *
 * @param families as they are from this segment on
 */
private[store] final case class WholeSegment(head: SegmentHead, families: Seq[Family])
