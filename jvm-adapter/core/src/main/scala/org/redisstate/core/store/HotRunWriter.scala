package org.redisstate.core.store

import org.slf4j.LoggerFactory

import org.redisstate.core.format.{Bucketing, EncodedField, Segment, SegmentWriter}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Layer, LayerSizes}
import org.redisstate.core.local.blocks.Room
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.protocol.manifest.MemoryBound
import org.redisstate.core.store.loading.{LayerLoader, SegmentLoader, WholeReader, WholeSegment}

/**
 * Writes hot runs: while the base of a bounded partition is in a file, the rows that changed
 * since then stay in Redis, merged. For the maintenance thread.
 */
private[store] final class HotRunWriter(
    client: PartitionClient,
    segments: () => SegmentLoader,
    room: Room,
    sizes: LayerSizes) {
  import HotRunWriter._

  /**
   * Base over which a hot run was too large, and the version from which it is tried again: twice as
   * far above the base.
   */
  private var refused = Option.empty[(Pin, Long)]

  /**
   * Writes a hot run of a version that was opened.
   *
   * @return None if the base is not in a file, or the rows are too many, or nobody wants the run
   * @throws org.redisstate.core.protocol.SegmentGone if a segment was replaced meanwhile
   */
  def write(version: LocalVersion): Option[HotRunSize] =
    client.files.bound().flatMap { bound =>
      val listed = client.reopen(version.pin, hotRuns = true).segments
      for {
        base <- listed.lastOption if base.isBase && client.segments.isInFile(base)
        changes = listed.init.reverse if changes.nonEmpty && !isRefused(version, base)
        size <- merged(base, changes)(enter(version, bound, base, changes.last, _))
      } yield size
    }

  private def isRefused(version: LocalVersion, base: Segment): Boolean =
    refused.exists { case (over, from) =>
      over == Pin(base.version, base.uid) && version.pin.version < from
    }

  /**
   * Uses one layer of all changes since a base, which has its room until then.
   *
   * @return None also if there is no room
   */
  private def merged(base: Segment, changes: Seq[Segment])(
      use: Layer => Option[HotRunSize]): Option[HotRunSize] = {
    val filled = changes.filter(_.entry.blocks > 0)
    val bytes = filled.iterator.map(one => WholeReader.bytesOf(one.entry)).sum
    if (filled.isEmpty || bytes > sizes.mergedMax) None
    else
      Room.offered(room, bytes) {
        val loader = segments()
        val heads = loader.heads(base +: changes)
        val tables = heads.scanLeft(FamilyTable.Empty)((table, head) => table.after(head.header))
        val wholes = heads.zip(tables.tail).tail.collect {
          case (head, table) if head.segment.entry.blocks > 0 => WholeSegment(head, table.families)
        }
        use(new LayerLoader(loader.whole, sizes).layers(wholes) match {
          case List(one) => one
          case layers => Layer.merge(layers)
        })
      }.flatten
  }

  private def enter(
      version: LocalVersion,
      bound: MemoryBound,
      base: Segment,
      newest: Segment,
      layer: Layer): Option[HotRunSize] = {
    val pin = version.pin
    val over = Pin(base.version, base.uid)
    val (run, fields) = encoded(version, over, newest, layer)
    if (!bound.takesHotRun(run.entry)) {
      refused = Some(over -> (2 * pin.version - base.version))
      None
    } else {
      val lacking = bound.lackingFor(run.entry)
      if (lacking > 0) client.files.makeRoom(lacking): Unit
      Option.when(client.hotRuns.add(run, over, fields)) {
        log.info(
          s"added a hot run of ${client.id} version ${pin.version} over version ${base.version}: " +
            s"${run.entry.rows} rows, ${run.entry.bytes} bytes")
        HotRunSize(pin.version, run.entry.bytes, (pin.version - base.version).toInt)
      }
    }
  }

  private def encoded(
      version: LocalVersion,
      over: Pin,
      newest: Segment,
      layer: Layer): (Segment, Seq[EncodedField]) = {
    val pin = version.pin
    val uid = Pin.newUid()
    val writer = new SegmentWriter(
      Segment.hotRunIdent(pin.version, uid),
      Bucketing.bucketsFor(layer.rows.toLong, layer.usedBytes.toLong))
    val ordered = version.hashOf.ordered
    layer.foreachBucket(writer.buckets, ordered)(writer.add)
    ordered.toSeq.sorted.foreach(family => writer.addOrdered(family, layer.rowsOf(family)))
    val entry = writer.finish(
      uid,
      newest.entry.live,
      Some(version.families),
      layer.ranges,
      internal = newest.entry.internal,
      highestId = version.table.highestId,
      time = newest.entry.time)
    (Segment(isSnapshot = false, pin.version, pin.uid, entry, over = Some(over)), writer.allFields)
  }
}

private object HotRunWriter {
  private val log = LoggerFactory.getLogger(classOf[HotRunWriter])
}
