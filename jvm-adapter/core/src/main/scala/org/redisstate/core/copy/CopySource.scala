package org.redisstate.core.copy

import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.errors.{FencedException, UnavailableException}
import org.redisstate.core.format.{BlockSigner, Segment}
import org.redisstate.core.ids.{Keys, PartitionId, Pin}
import org.redisstate.core.places.FileFolders
import org.redisstate.core.protocol._

/** A store of an operator in the registry; 0 partitions mean that their number is unknown. */
final case class CopiedStore(operator: Long, name: String, partitions: Int)

/**
 * One partition of a copy: what Redis lists of it at the copied version.
 *
 * @param segments newest first
 * @param format checkpoint format of the run that holds it, as the manifest says
 * @param retained versions that this run retains, as the manifest says
 */
final case class CopyPart(
    id: PartitionId,
    pin: Pin,
    segments: Seq[Segment],
    format: String,
    retained: String)

/**
 * Finds the state of a query in Redis, for a copy of one version (docs/format.md, section 11).
 * Changes nothing.
 *
 * @param folders of block files, whose segments a copy has as well
 */
final class CopySource(
    backend: RedisBackend,
    prefix: String,
    gen: String,
    signer: Option[BlockSigner],
    folders: Option[FileFolders]) {
  import CopySource._

  private val registry = new RunRegistry(backend, prefix, gen)
  private val settings = ProtocolSettings(1, keepMs = 0, CheckpointFormat.V2, signer)

  /** Returns the registry's fields of the query and its stores. */
  def query(): Map[String, String] = registry.fields().filter { case (name, _) =>
    QueryFields(name) || name.startsWith(StorePrefix)
  }

  /**
   * Returns every partition of every store at one version; a missing one is an error.
   *
   * @param stores from the registry
   * @param runId of the run that has opened the version
   * @throws FencedException if another run holds a partition
   * @throws UnavailableException if some partitions have not opened the version yet
   */
  def parts(stores: Seq[CopiedStore], runId: String, version: Long): Seq[CopyPart] = {
    val what = s"copy version $version of checkpoint $gen"
    val ids = stores.flatMap(partitionsOf)
    val opened = ids.map { id =>
      val found = clientOf(id).open("", Some(version), None, Nil)
      if (found.opened < version) {
        throw new UnavailableException(
          s"$what: $id has opened version ${found.opened} only. The copy is made later.")
      }
      found
    }
    // Looked at last: whoever holds a partition now held it while its segments were listed.
    ids.zip(opened).zip(holders(ids)).map { case ((id, found), (holder, format, retained)) =>
      if (holder != runId) {
        throw new FencedException(
          s"$what: the run $holder holds $id. This run is over, and makes no more copies.")
      }
      CopyPart(id, found.pin, found.segments, format, retained)
    }
  }

  /** Blocks of a partition's segments. */
  private[copy] def segmentsOf(id: PartitionId): SegmentIo = clientOf(id).segments

  /**
   * Returns the partitions of a store. Without a listed number, returns the written ones, since
   * each batch writes all.
   */
  private def partitionsOf(store: CopiedStore): Seq[PartitionId] = {
    def ids(from: Int, until: Int) =
      (from until until).map(PartitionId(prefix, gen, store.operator, _, store.name))
    if (store.partitions > 0) ids(0, store.partitions)
    else {
      val found = mutable.ArrayBuffer.empty[PartitionId]
      var all = true
      while (all) {
        val chunk = ids(found.size, found.size + PartitionsAtOnce)
        val there = chunk.zip(holders(chunk)).takeWhile(_._2._1 != null).map(_._1)
        found ++= there
        all = there.size == chunk.size
      }
      found.toSeq
    }
  }

  /**
   * Returns run, checkpoint format and retained versions of each partition; null without a
   * manifest.
   */
  private def holders(ids: Seq[PartitionId]): Seq[(String, String, String)] =
    ids.grouped(PartitionsAtOnce).toSeq.flatMap { some =>
      val commands = some.map(id => Command("HMGET", Keys.meta(id), "r", "c", "n"))
      backend.call(s"look up the holders of the partitions of checkpoint $gen", commands).map {
        case fields: Seq[_] =>
          val texts = fields.map {
            case bytes: Array[Byte] => new String(bytes, UTF_8)
            case _ => null
          }
          (texts.head, Option(texts(1)).getOrElse("1"), Option(texts(2)).getOrElse("1"))
        case _ => (null, "1", "1")
      }
    }

  private def clientOf(id: PartitionId) =
    new PartitionClient(backend, id, settings, registry, folders = folders)
}

object CopySource {
  val StorePrefix = "op:"
  private val QueryFields = Set("path", "id", "name", "created")
  private val PartitionsAtOnce = 256
}
