package org.redisstate.core.store

import scala.collection.mutable

import org.redisstate.core.format.{EncodedField, Entry, Family, RowBlock, Segment, SegmentWriter}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.Content
import org.redisstate.core.local.blocks.{OrderedRows, Room}
import org.redisstate.core.protocol.{PartitionClient, ShareFull}

/**
 * A snapshot in the manifest.
 *
 * @param blocks of its ordered families, where they were here as a whole
 */
private[store] final class WrittenSnapshot(
    val segment: Segment,
    blocks: Map[Int, Seq[RowBlock]]) {

  /** Fills ordered families of the snapshot with the blocks that are still in memory. */
  def fill(ordered: Map[Int, OrderedRows]): Map[Int, OrderedRows] = {
    ordered.foreach { case (family, rows) => blocks.get(family).foreach(rows.fill) }
    ordered
  }
}

/**
 * Writes the rows of a version as a snapshot. They leave for Redis as they are read and folded, so
 * that a state larger than the memory can have one.
 */
private[store] final class SnapshotWriter(client: PartitionClient, room: Room) {
  import SnapshotWriter._

  /** @return None when Redis did not want the snapshot any more */
  def write(
      version: LocalVersion,
      content: Content,
      table: Seq[Family]): Option[WrittenSnapshot] = {
    val bytes = content.base.orderedBytes
    if (!content.isFolded) write(version, content, table, keeps = false)
    else Room.offered(room, bytes)(write(version, content, table, keeps = true))
      .getOrElse(write(version, content, table, keeps = false))
  }

  private def write(
      version: LocalVersion,
      content: Content,
      table: Seq[Family],
      keeps: Boolean): Option[WrittenSnapshot] = {
    val work = new Work(version, content, table, keeps)
    Room.taking(room, 2 * content.layerBytes + StageBytes) {
      val bound = client.files.bound()
      // Compressed blocks take less than the rows; the segments in Redis say how much.
      val history = version.history
      if (bound.exists(!_.takesBase(history.snapshotBytes + history.changedBytes))) inFile(work)
      else
        try inRedis(work, isBounded = bound.nonEmpty)
        catch { case _: ShareFull => inFile(work) }
    }
  }

  /** Stages the blocks in Redis, then enters the snapshot. */
  private def inRedis(work: Work, isBounded: Boolean): Option[WrittenSnapshot] = {
    val uid = Pin.newUid()
    val ident = Segment.snapshotIdent(work.version.pin.version, uid)
    orRemoved(ident) {
      val (entry, kept) =
        written(work, uid, ident, inOrder = false)(client.snapshots.stage(ident, _, isBounded))
      val segment = work.segment(entry)
      Option.when(client.snapshots.add(segment))(new WrittenSnapshot(segment, kept))
    }
  }

  /** Writes the blocks into a file, without a detour by Redis, then enters the snapshot. */
  private def inFile(work: Work): Option[WrittenSnapshot] = {
    val uid = Pin.newUid()
    val ident = Segment.snapshotIdent(work.version.pin.version, uid)
    var kept = Map.empty[Int, Seq[RowBlock]]
    val begun = work.segment(Entry(uid, 0, 0, 0, 0, 1, 0, complete = false, header = false))
    client.files.write(begun, work.table) { give =>
      val (entry, blocks) = written(work, uid, ident, inOrder = true)(_.foreach(give))
      kept = blocks
      work.segment(entry)
    }.map { case (segment, place) => segment.copy(place = place) }
      .filter(client.snapshots.add)
      .map(new WrittenSnapshot(_, kept))
  }

  /**
   * Removes staged blocks after a failure: they would take room for a day, which a full server
   * needs for commits.
   */
  private def orRemoved[A](ident: String)(work: => A): A =
    try work
    catch {
      case e: Throwable =>
        client.later(client.snapshots.abort(ident)): Unit
        throw e
    }

  /**
   * Sends all blocks.
   *
   * @param inOrder sends buckets in ascending order, also where their number grows
   * @return the entry, and the blocks of ordered families if they are kept
   */
  private def written(work: Work, uid: String, ident: String, inOrder: Boolean)(
      send: Seq[EncodedField] => Unit): (Entry, Map[Int, Seq[RowBlock]]) = {
    import work._
    val (buckets, pass) =
      Content.folding(content, version.hashOf, version.live.all, version.expiry, inOrder)
    val writer = new SegmentWriter(ident, buckets)
    def stage(least: Long): Unit = if (writer.freshBytes > least)
      send(writer.handOver())
    pass { (bucket, rows) =>
      writer.add(bucket, rows)
      stage(StageBytes)
    }
    val kept = mutable.HashMap.empty[Int, Seq[RowBlock]]
    table.filter(_.kind.ordered).map(_.id).sorted.foreach { family =>
      val blocks = mutable.ArrayBuffer.empty[RowBlock]
      writer.addOrdered(family, content.sortedBlocks(family)) { rows =>
        if (keeps) blocks += rows
        stage(StageBytes)
      }
      kept(family) = blocks.toSeq
    }
    val entry = writer.finish(
      uid,
      if (version.expiry.isOn) writer.rows else version.live.all,
      Some(table),
      Nil,
      internal = version.live.internal,
      highestId = version.table.highestId,
      time = version.timeS
    )
    stage(0)
    (entry, if (keeps) kept.toMap else Map.empty)
  }
}

private object SnapshotWriter {

  /** A version to be written, which can be done more than once. */
  private final case class Work(
      version: LocalVersion,
      content: Content,
      table: Seq[Family],
      keeps: Boolean) {
    def segment(entry: Entry): Segment =
      Segment(isSnapshot = true, version.pin.version, version.pin.uid, entry)
  }

  private val StageBytes = 1L << 20
}
