package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.format.{BlockSigner, Segment, Vectors}
import org.redisstate.core.ids.{Keys, PartitionId, Pin}
import org.redisstate.core.protocol.CheckpointFormat

/** Pins and forks of partitions, made by the scripts alone, as `redis-state fork` makes them. */
private[store] object ForkedPartitions {
  val DayMs: Long = 24L * 3600 * 1000

  /** Runs a script that the JVM itself does not send. */
  def script(backend: RedisBackend, name: String, id: PartitionId, args: String*): Seq[String] =
    backend.call(
      s"run $name",
      Seq(Command("EVAL", Seq(text(name), "1", Keys.meta(id)) ++ args: _*))).head match {
      case words: Seq[_] =>
        words.map {
          case bytes: Array[Byte] => new String(bytes, UTF_8)
          case other => String.valueOf(other)
        }
      case other => Seq(String.valueOf(other))
    }

  /** Pins a version; returns its segments as triples, newest first. */
  def pin(
      p: TestPartition,
      owner: String,
      at: Pin,
      kind: String = "keep",
      ttlMs: Long = 0): Seq[(String, String, String)] = {
    val reply =
      script(p.backend, "pin", p.id, owner, kind, at.version.toString, at.uid, ttlMs.toString)
    assert(reply.take(3) == Seq("OK", at.version.toString, at.uid), reply)
    reply.drop(5).grouped(3).collect { case Seq(field, entry, place) =>
      (field, entry, place)
    }.toSeq
  }

  /** Makes a partition begin at a version of another checkpoint, which pins it for it. */
  def fork(parent: TestPartition, to: TestPartition, at: Pin, format: CheckpointFormat): Unit = {
    val listed = pin(parent, to.id.gen, at, "fork")
    val oldest = Segment.parse(listed.last._1, listed.last._2)
    val floor = if (oldest.isSnapshot || oldest.entry.complete) oldest.version else 0
    val placed = listed.flatMap { case (field, entry, place) =>
      Seq(field, entry, if (place.isEmpty) s"p ${parent.id.gen}" else place)
    }
    val head = Seq(
      parent.id.gen,
      at.version.toString,
      at.uid,
      floor.toString,
      parent.meta("n"),
      format.number.toString,
      DayMs.toString)
    assert(script(to.backend, "fork", to.id, head ++ placed: _*) == Seq("OK"))
    to.raw.persist(Keys.meta(to.id))
    ()
  }

  private def text(name: String): String = {
    val in = getClass.getResourceAsStream(s"/org/redisstate/scripts/$name.lua")
    val own =
      try new String(in.readAllBytes(), UTF_8)
      finally in.close()
    val included = own.linesIterator.takeWhile(_.startsWith("--#include "))
    included.map(line => text(line.stripPrefix("--#include ").trim)).mkString + own
  }
}

/**
 * A query of one partition, with the rows of each version that it went on with.
 *
 * @param rows by version
 */
private[store] final class Timeline(
    val partition: TestPartition,
    name: String,
    format: CheckpointFormat = CheckpointFormat.V1,
    signer: Option[BlockSigner] = None,
    private var versions: Map[Long, (Pin, Map[String, String])] =
      Map(0L -> (Pin.Empty, Map.empty))) {
  import TestPartition._

  private var runs = 1
  private var store = newStore()

  def at: Long = versions.keys.max
  def newest: Pin = versions(at)._1
  def run: String = s"$name$runs"

  def commit(times: Int): Unit = (1 to times).foreach { _ =>
    val (base, before) = versions(at)
    val session = open(store, at).write()
    val puts = (0L to (if (at == 0) 300L else 40L)).map(i => s"k${(at * 17 + i) % 300}") :+ s"n$at"
    val changed = puts.map(key => key -> s"$name.$runs.$at.$key").toMap
    changed.foreach { case (key, value) => put(session, TestPartition.key(0, key), value) }
    val gone = s"n${at - 2}"
    val removed = TestPartition.key(0, gone)
    if (before.contains(gone)) session.remove(removed, removed.length)
    versions += base.version + 1 -> (session.commit(), before ++ changed - gone)
  }

  /** Goes back as a new run of the query that its driver has registered. */
  def rewind(to: Long): Unit = {
    versions = versions.filter(_._1 <= to)
    runs += 1
    store = newStore()
  }

  /** Folds the rows, writes a snapshot of the newest version and drops what no version needs. */
  def maintain(): Unit = {
    open(store, at)
    store.requestSnapshot()
    assert(store.snapshotIfDue(), s"$name $at")
    retain()
  }

  def retain(): Unit = {
    store.retain()
    ()
  }

  /** Compares the rows of a version, on an executor that has nothing cached, with what was written. */
  def check(version: Long): Unit = checkAt(partition, version)

  /** Compares the rows of a version where a partition is that has it. */
  def checkAt(place: TestPartition, version: Long): Unit = checkWith(coldStore(place), version)

  /** Compares the rows of a version as a store reads it. */
  def checkWith(store: PartitionVersions, version: Long): Unit = {
    val found = rows(open(store, version).iterator(0)).toMap
    assert(found == versions(version)._2.map { case (k, v) => hex(key(0, k)) -> hex(v.getBytes) })
  }

  /** Number of rows of a version. */
  def count(version: Long): Int = versions(version)._2.size

  def floor: Long = partition.meta("w").toLong

  def checkAll(): Unit = {
    val all = versions.keys.filter(_ >= floor).toSeq.sorted
    assert(all.nonEmpty)
    all.foreach(check)
  }

  /** Forks another query off a version; both have the same rows up to it. */
  def fork(to: TestPartition, as: String, version: Long): Timeline = {
    ForkedPartitions.fork(partition, to, versions(version)._1, format)
    new Timeline(to, as, format, signer, versions.filter(_._1 <= version))
  }

  def coldStore: PartitionVersions = coldStore(partition)

  private def coldStore(place: TestPartition) =
    place.store("reader", format = format, signer = signer)

  private def newStore() = partition.store(run, format = format, signer = signer)

  private def open(store: PartitionVersions, version: Long): OpenVersion = {
    val uid = Option.when(format == CheckpointFormat.V2 && version > 0)(versions(version)._1.uid)
    store.open(version, uid)
  }

  private def hex(bytes: Array[Byte]): String =
    Vectors.hex(bytes, 0, bytes.length)
}

/** Fields of a manifest that are about pins. */
private[store] object PinFields {
  def of(p: TestPartition, kind: String): Map[String, String] =
    p.raw.hgetAll(Keys.meta(p.id)).asScala.toMap.collect {
      case (field, value) if field.startsWith(s"$kind:") => field.drop(2) -> value
    }
}
