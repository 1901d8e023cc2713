package org.apache.spark.sql.redisstate.executor

import java.util.concurrent.TimeUnit

import scala.collection.immutable.ListMap

import org.json4s.{JArray, JInt, JObject}

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.store.resources.StoreCounters

/**
 * What the providers of one partition did lately in this process: the increases since the beginning
 * of a window of five to ten minutes (docs/format.md, section 9). Thread-safe.
 */
private[redisstate] final class RecentFigures(startedNs: Long) {
  import RecentFigures._

  /** Figures of providers that were closed. */
  @GuardedBy("this") private var closed = Figures.Zero
  @GuardedBy("this") private var providers = 0L

  /** Begin of this window and of the next one; none before the first report. */
  @GuardedBy("this") private var before, next = Option.empty[Mark]

  /** Counts a provider that begins to serve the partition. */
  def begin(): Unit = synchronized(providers += 1)

  /** Keeps the figures of a provider that ends. */
  def end(figures: Figures): Unit = synchronized { closed = closed.plus(figures) }

  /**
   * Returns the members of the window that ends now; those that are 0 are left out.
   *
   * @param figures of the provider that serves the partition
   * @param version that it opened or committed last
   * @param retries of the process, for all partitions
   */
  def report(figures: Figures, version: Long, retries: Long, nowNs: Long): JObject = synchronized {
    val all = closed.plus(figures)
    val started = version - all.numbers.getOrElse("commits", 0L)
    if (before.isEmpty) {
      before = Some(Mark(startedNs, Figures.Zero, Map("versions" -> started, "retries" -> retries)))
      next = before
    }
    val now = Mark(
      nowNs,
      all,
      Map("providers" -> providers, "versions" -> version, "retries" -> retries))
    if (next.forall(nowNs - _.ns >= WindowNs)) {
      before = next
      next = Some(now)
    }
    before.fold(JObject())(now.since)
  }
}

private[redisstate] object RecentFigures {
  private[executor] val WindowNs = TimeUnit.MINUTES.toNanos(5)

  /** @param classes numbers of opening calls by their time */
  final case class Figures(numbers: ListMap[String, Long], classes: Seq[Long]) {
    def plus(other: Figures): Figures = combined(other)(_ + _)
    def minus(other: Figures): Figures = combined(other)((a, b) => math.max(0L, a - b))

    private def combined(other: Figures)(how: (Long, Long) => Long): Figures = Figures(
      (numbers.keys.toSeq ++ other.numbers.keys).distinct.map { name =>
        name -> how(numbers.getOrElse(name, 0L), other.numbers.getOrElse(name, 0L))
      }.to(ListMap),
      classes.zipAll(other.classes, 0L, 0L).map { case (a, b) => how(a, b) }
    )
  }

  object Figures {
    val Zero: Figures = Figures(ListMap.empty, Nil)
  }

  /** @param levels numbers that do not add up over providers */
  private final case class Mark(ns: Long, figures: Figures, levels: Map[String, Long]) {
    def since(before: Mark): JObject = {
      val change = figures.minus(before.figures)
      val changed = levels.map { case (name, n) => name -> (n - before.levels.getOrElse(name, 0L)) }
      val numbers = (change.numbers.toList ++ changed).collect {
        case (name, n) if n > 0 => name -> JInt(n)
      }
      val times = change.classes.reverse.dropWhile(_ == 0).reverse.toList
      val classes = Option.when(times.nonEmpty)("openTimes" -> JArray(times.map(JInt(_))))
      JObject(("ms" -> JInt(TimeUnit.NANOSECONDS.toMillis(ns - before.ns))) :: numbers ++ classes)
    }
  }

  def of(client: PartitionClient, counted: StoreCounters): Figures = {
    def us(ns: Long) = TimeUnit.NANOSECONDS.toMicros(ns)
    Figures(
      ListMap(
        "opens" -> counted.opens.get,
        "openUs" -> us(counted.openNs.get),
        "loads" -> counted.cacheMisses.get,
        "loadUs" -> us(counted.loadNs.get),
        "deltas" -> counted.deltasLoaded.get,
        "commits" -> counted.commits.get,
        "commitUs" -> us(counted.commitNs.get),
        "encodeUs" -> us(counted.encodeNs.get),
        "encodeCpuUs" -> us(counted.encodeCpuNs.get),
        "stageUs" -> us(counted.stageNs.get),
        "workUs" -> us(counted.workNs.get),
        "misses" -> counted.misses.get,
        "missUs" -> us(counted.missNs.get),
        "roomUs" -> us(counted.roomNs.get),
        "buckets" -> counted.bucketsLoaded.get,
        "reloaded" -> counted.bucketsReloaded.get,
        "rows" -> (counted.rowsWritten.get + counted.rowsRemoved.get),
        "bytesSent" -> client.bytesSent.get,
        "bytesRead" -> client.bytesRead.get,
        "roundTrips" -> client.roundTrips.get,
        "redisUs" -> us(client.times.ns.get),
        "durable" -> client.times.durable.get,
        "durableUs" -> us(client.times.durableNs.get),
        "foldUs" -> us(counted.foldNs.get),
        "maintenanceUs" -> us(counted.maintenanceNs.get),
        "snapshots" -> counted.snapshots.get,
        "fileReads" -> client.filed.reads.get,
        "fileUs" -> us(client.filed.readNs.get),
        "roomWaits" -> client.filed.roomWaits.get,
        "roomWaitUs" -> us(client.filed.roomWaitNs.get)
      ),
      client.times.openClasses
    )
  }
}
