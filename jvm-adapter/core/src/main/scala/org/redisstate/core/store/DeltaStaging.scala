package org.redisstate.core.store

import java.util.concurrent.Future

import org.redisstate.core.format._
import org.redisstate.core.local.Layer
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.store.resources.Staging

/**
 * Blocks of one delta on their way to Redis. For one task thread, except `hasLeftBlocks`.
 *
 * @param ident of the delta
 * @param isWanted whether blocks that are not sent yet are still of use
 */
private[store] final class DeltaStaging(
    client: PartitionClient,
    ident: String,
    isWanted: () => Boolean) {

  /** Exists from the first rows on. */
  private var writer: SegmentWriter = _
  @volatile private var staging: List[Future[_]] = Nil

  /**
   * True if a commit that failed may have left blocks; on a server that is down they expire by
   * themselves.
   */
  @volatile private var failed = false

  /** Bytes of blocks that were encoded. */
  def bytes: Long = if (writer == null) 0L else writer.bytes

  /** Returns whether the server may have blocks of the delta. */
  def hasLeftBlocks: Boolean = failed || staging.nonEmpty

  /** Notes that a commit failed after it may have sent blocks. */
  def leaveBlocks(): Unit = failed = true

  /** Fixes the number of buckets by the rows that come first, if there is none yet. */
  def begin(rows: Long, bytes: Long): Unit =
    if (writer == null) writer = new SegmentWriter(ident, Bucketing.bucketsFor(rows, bytes))

  /**
   * Sends the rows of a layer in the background, after `begin`.
   *
   * @param ordered families whose blocks wait for `finish`
   */
  def stage(rows: Layer, ordered: Set[Int]): Unit = {
    val segment = writer
    staging ::= client.later {
      if (isWanted()) {
        rows.foreachBucket(segment.buckets, ordered)(segment.add)
        client.segments.stage(ident, ident, segment.takeFresh())
      }
    }
  }

  /** Waits for all blocks on their way. */
  def await(): Unit = staging.reverse.foreach(Staging.await(_, ident, client.id))

  /**
   * Encodes the last rows, after `begin` and `await`.
   *
   * @param all every row of ordered families
   */
  def add(rest: Layer, ordered: Set[Int])(all: => Layer): Unit = {
    rest.foreachBucket(writer.buckets, ordered)(writer.add)
    if (ordered.nonEmpty) {
      val rows = all
      ordered.toSeq.sorted.foreach(family => writer.addOrdered(family, rows.rowsOf(family)))
    }
  }

  /** Returns the entry and the fields that were not sent yet; the last call but for `allFields`. */
  def finish(entryOf: SegmentWriter => Entry): (Entry, Seq[EncodedField]) = {
    val entry = entryOf(writer)
    (entry, writer.takeFresh())
  }

  def allFields: Seq[EncodedField] = writer.allFields
}
