package org.apache.spark.sql.redisstate.query

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.SparkEnv
import org.apache.spark.metrics.MetricsSystem
import org.apache.spark.metrics.source.Source
import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * The figures of the last batch of each query with state in Redis, in the driver's metrics system:
 * Spark's sinks and its Prometheus endpoint have them as `redisState.<query>.<figure>`.
 */
private[redisstate] object QueryGauges extends Source {
  override val sourceName: String = "redisState"
  override val metricRegistry: MetricRegistry = new MetricRegistry

  /** What names may have in every sink. */
  private val Unfit = "[^A-Za-z0-9_-]".r
  private val Ours = "redisState"
  private val OfPython = "redis_state."

  /** A query that was started again takes the names over from its run before. */
  private final class Figure(val run: UUID, @volatile var value: Long) extends Gauge[Long] {
    override def getValue: Long = value
  }

  private val figures = new ConcurrentHashMap[String, Figure]
  private var system: Option[MetricsSystem] = None

  /** Shows what a batch counted; its progress has the figures of Python's stores by now. */
  def show(progress: StreamingQueryProgress): Unit = {
    val found = of(progress)
    if (found.nonEmpty) synchronized {
      found.foreach { case (name, value) => set(name, progress.runId, value) }
      register()
    }
  }

  /** Removes the gauges of a run that has ended. */
  def remove(run: UUID): Unit = synchronized {
    figures.asScala.toSeq.collect { case (name, figure) if figure.run == run => name }.foreach {
      name =>
        figures.remove(name)
        metricRegistry.remove(name)
    }
  }

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
        row.schema.fieldNames.toSeq.zipWithIndex.map { case (field, at) =>
          s"${fit(name.drop(OfPython.length))}.${fit(field)}" -> row.getLong(at)
        }
    }.flatten
    val all = operators ++ stores
    if (all.isEmpty) Map.empty
    else {
      val query = fit(Option(progress.name).getOrElse(progress.id.toString))
      (all :+ ("batch" -> progress.batchId)).map { case (name, value) => s"$query.$name" -> value }
        .toMap
    }
  }

  private def set(name: String, run: UUID, value: Long): Unit =
    Option(figures.get(name)) match {
      case Some(figure) if figure.run == run => figure.value = value
      case before =>
        before.foreach(_ => metricRegistry.remove(name))
        val figure = new Figure(run, value)
        figures.put(name, figure)
        metricRegistry.register(name, figure)
        ()
    }

  /** Once for each context; the first query of it comes long after its metrics system has started. */
  private def register(): Unit =
    Option(SparkEnv.get).map(_.metricsSystem).filterNot(system.contains).foreach { now =>
      now.registerSource(this)
      system = Some(now)
    }

  private def fit(name: String): String = Unfit.replaceAllIn(name, "_")

  private def uncapitalized(name: String): String = name.head.toLower +: name.tail
}
