package org.apache.spark.sql.redisstate.executor

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.copy.CopiedStore
import org.redisstate.core.ids.{Keys, PartitionId}
import org.redisstate.core.protocol.RunRegistry

/**
 * Size of a state in Redis: all bytes whose keys its manifests have, as `redis-state size` shows
 * them. Segments of another checkpoint are counted there, those in files nowhere.
 */
private[redisstate] object StateSize {
  private val PartitionsAtOnce = 64
  private val LargestMax = 3

  /** Position of the bytes in the entry of a manifest (docs/format.md, section 5). */
  private val BytesWord = 4

  final case class PartitionSize(operator: Long, store: String, partition: Int, bytes: Long)

  /**
   * The bytes of a checkpoint, and its largest partitions.
   *
   * @throws org.redisstate.core.errors.FormatException if its registry is damaged
   */
  def of(backend: RedisBackend, prefix: String, gen: String): (Long, Seq[PartitionSize]) = {
    val registered = RegisteredStores.of(gen, new RunRegistry(backend, prefix, gen).fields())
    val sizes = registered.flatMap(partsOf(backend, prefix, gen, _))
    (sizes.map(_.bytes).sum, sizes.sortBy(-_.bytes).take(LargestMax).filter(_.bytes > 0))
  }

  /**
   * Returns the sizes of a store's partitions. Without a listed number, of those that were written:
   * each batch writes all.
   */
  private def partsOf(
      backend: RedisBackend,
      prefix: String,
      gen: String,
      store: CopiedStore): Seq[PartitionSize] = {
    val numbers =
      if (store.partitions > 0) Iterator.range(0, store.partitions) else Iterator.from(0)
    val manifests = numbers.grouped(PartitionsAtOnce).flatMap { some =>
      val replies = backend.call(
        s"measure the state of checkpoint $gen",
        some.map(number =>
          Command(
            "HGETALL",
            Keys.meta(PartitionId(prefix, gen, store.operator, number, store.name)))))
      some.zip(replies.map(fields))
    }
    val counted =
      if (store.partitions > 0) manifests else manifests.takeWhile(_._2.nonEmpty)
    counted.map { case (number, manifest) =>
      PartitionSize(store.operator, store.name, number, bytesOf(manifest))
    }.toSeq
  }

  private[redisstate] def bytesOf(manifest: Seq[String]): Long = {
    val pairs = manifest.grouped(2).collect { case Seq(field, value) => field -> value }.toSeq
    val elsewhere =
      pairs.collect { case (field, _) if field.startsWith("a:") => field.drop(2) }.toSet
    pairs.flatMap { case (field, value) => segmentIn(field, value) }.collect {
      case (ident, words) if !elsewhere(ident) =>
        words.lift(BytesWord).flatMap(_.toLongOption).getOrElse(0L)
    }.sum
  }

  /** The ident of the segment that a field names, set aside or not, and the words of its entry. */
  private def segmentIn(field: String, value: String): Option[(String, Seq[String])] = {
    val words = value.split(' ').toSeq
    field.split(":", 2) match {
      case Array("z", ident) => Some(ident -> words.drop(1))
      case Array("d", _) => Some(field -> words)
      case Array("s", at) => Some(s"s:${at.takeWhile(_ != ':')}:${words.head}" -> words)
      case _ => None
    }
  }

  /** Returns the texts of a reply's fields; empty for a missing field. */
  def fields(reply: Any): Seq[String] = reply match {
    case all: Seq[_] => all.map {
        case bytes: Array[Byte] => new String(bytes, UTF_8)
        case _ => ""
      }
    case _ => Nil
  }
}
