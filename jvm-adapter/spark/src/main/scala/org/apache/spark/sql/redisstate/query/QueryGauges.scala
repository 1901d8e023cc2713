package org.apache.spark.sql.redisstate.query

import java.util.UUID

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.SparkEnv
import org.apache.spark.metrics.MetricsSystem
import org.apache.spark.metrics.source.Source
import org.apache.spark.sql.streaming.StreamingQueryProgress

import org.redisstate.core.concurrent.GuardedBy

/**
 * The figures of the last batch of each query with state in Redis, in the driver's metrics system:
 * Spark's sinks and its Prometheus endpoint have them as `redisState.<query>.<figure>`.
 */
private[redisstate] object QueryGauges {

  /** Characters that some sinks do not accept in names. */
  private val Unfit = "[^A-Za-z0-9_-]".r
  private val Ours = "redisState"
  private val OfPython = "redis_state."

  @GuardedBy("this") private var shown: Option[(MetricsSystem, ShownQueries)] = None

  /** Shows what a batch counted; its progress has the figures of Python's stores by now. */
  def show(progress: StreamingQueryProgress): Unit = {
    val found = of(progress)
    if (found.nonEmpty) synchronized {
      here().foreach(_.show(nameOf(progress), progress.id, progress.runId, found))
    }
  }

  /** Removes the gauges of a run that has ended. */
  def remove(run: UUID): Unit = synchronized {
    shown.foreach { case (_, queries) => queries.remove(run) }
  }

  /**
   * Returns the queries of this context: no event reports how the queries of a stopped context
   * ended.
   */
  private def here(): Option[ShownQueries] =
    Option(SparkEnv.get).map(_.metricsSystem).map { system =>
      shown.collect { case (known, queries) if known eq system => queries }.getOrElse {
        val queries = new ShownQueries
        system.registerSource(queries)
        shown = Some(system -> queries)
        queries
      }
    }

  private def nameOf(progress: StreamingQueryProgress): String =
    fit(Option(progress.name).getOrElse(progress.id.toString))

  private def of(progress: StreamingQueryProgress): Map[String, Long] = {
    val operators = progress.stateOperators.toSeq.zipWithIndex.flatMap { case (operator, number) =>
      val own = operator.customMetrics.asScala.collect {
        case (name, value) if name.startsWith(Ours) =>
          uncapitalized(name.drop(Ours.length)) -> value.toLong
      }
      if (own.isEmpty) Nil
      else {
        (own.toSeq ++ Seq(
          "rows" -> operator.numRowsTotal,
          "rowsUpdated" -> operator.numRowsUpdated,
          "memoryUsedBytes" -> operator.memoryUsedBytes)).map { case (name, value) =>
          s"operator$number.$name" -> value
        }
      }
    }
    val stores = progress.observedMetrics.asScala.toSeq.collect {
      case (name, row) if name.startsWith(OfPython) =>
        row.schema.fieldNames.toSeq.zip(row.toSeq).collect { case (field, value: Long) =>
          s"${fit(name.drop(OfPython.length))}.${fit(field)}" -> value
        }
    }.flatten
    val all = operators ++ stores
    if (all.isEmpty) Map.empty else (all :+ ("batch" -> progress.batchId)).toMap
  }

  private def fit(name: String): String = Unfit.replaceAllIn(name, "_")

  private def uncapitalized(name: String): String = name.head.toLower +: name.tail
}

/** The gauges of the queries of one context. */
private final class ShownQueries extends Source {
  override val sourceName: String = "redisState"
  override val metricRegistry: MetricRegistry = new MetricRegistry

  private final class FigureGauge(@volatile var value: Long) extends Gauge[Long] {
    override def getValue: Long = value
  }

  private final class Shown(val id: UUID, val run: UUID) {
    val figures: mutable.Map[String, FigureGauge] = mutable.Map.empty
  }

  @GuardedBy("QueryGauges") private val queries = mutable.Map.empty[String, Shown]

  /**
   * Shows the gauges of a run. A restarted query takes the name over from its earlier run; of two
   * queries with one name the later one gets the beginning of its id as a suffix.
   */
  def show(name: String, id: UUID, run: UUID, found: Map[String, Long]): Unit = {
    val own = queries.collectFirst { case (known, shown) if shown.run == run => known }.getOrElse(
      if (queries.get(name).forall(_.id == id)) name else s"${name}_${id.toString.take(8)}")
    if (queries.get(own).exists(_.run != run)) drop(own)
    val figures = queries.getOrElseUpdate(own, new Shown(id, run)).figures
    found.foreach { case (figure, value) =>
      figures.get(figure) match {
        case Some(known) => known.value = value
        case None =>
          val made = new FigureGauge(value)
          figures.put(figure, made)
          metricRegistry.register(s"$own.$figure", made)
      }
    }
  }

  def remove(run: UUID): Unit =
    queries.collect { case (name, shown) if shown.run == run => name }.toSeq.foreach(drop)

  private def drop(name: String): Unit =
    queries.remove(name).foreach { shown =>
      shown.figures.keys.foreach(figure => metricRegistry.remove(s"$name.$figure"))
    }
}
