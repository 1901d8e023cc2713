package org.apache.spark.sql.redisstate.batches

import java.util.{Collections, LinkedHashMap}
import java.util.Map.Entry

import scala.jdk.CollectionConverters._

import org.json4s.DefaultFormats
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.SparkContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical.{Filter, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.execution.{SparkPlan, SparkStrategy, UnaryExecNode}
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.streaming.StreamingQueryProgress
import org.apache.spark.sql.types.{DataType, LongType, StructField, StructType}

/**
 * Shows the metrics of Python stores where Spark shows its own: at an operator of its own in the
 * UI's plan of the batch, and in the progress of the streaming query under `observedMetrics`. Spark
 * gives neither to Python workers: the figures come as a last column.
 */
private[redisstate] object BatchFigures {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  /** Most batches with figures; beyond them, those that no progress asked for are dropped. */
  private val BatchesMax = 1000

  private type Batch = (String, Long)

  private val reported = Collections.synchronizedMap(
    new LinkedHashMap[Batch, Map[String, Row]] {
      override def removeEldestEntry(eldest: Entry[Batch, Map[String, Row]]): Boolean =
        size > BatchesMax
    })

  /**
   * Returns the rows without their last column, which holds figures in one row of each partition
   * and null in all others. That row goes, too. Called by
   * `redis_state.map_partitions_with_state_store`.
   *
   * @param store whose figures they are
   * @param figures JSON: an array of `name`, `kind` (`sum`, `size` in bytes or `timing` in ms) and
   * `meaning`
   * @param schema JSON: of the rows that remain
   */
  def shown(rows: DataFrame, store: String, figures: String, schema: String): DataFrame = {
    val data = rows.asInstanceOf[Dataset[_]]
    val session = data.sparkSession
    StateFiguresStrategy.addTo(session)
    val plan = data.queryExecution.analyzed
    val counting =
      StateFigures(plan, plan.output.last, store, parse(figures).extract[Seq[Figure]])
    val wanted = DataType.fromJson(schema).asInstanceOf[StructType]
    val columns = plan.output.init.zip(wanted).map { case (column, field) =>
      if (field.nullable) column else Alias(KnownNotNull(column), column.name)()
    }
    Dataset.ofRows(session, Project(columns, counting))
  }

  /**
   * Notes what a batch of this thread's streaming query counted, for its progress; nothing happens
   * outside of `foreachBatch`. Called by `redis_state.map_partitions_with_state_store`.
   *
   * @param figures JSON: numbers by name
   */
  def report(context: SparkContext, store: String, figures: String): Unit =
    for {
      query <- Option(context.getLocalProperty("sql.streaming.queryId"))
      batch <- Option(context.getLocalProperty("streaming.sql.batchId"))
    } reported.merge(query -> batch.toLong, Map(store -> row(numbers(figures))), _ ++ _)

  /**
   * Adds to a progress what the stores of its batch reported. Spark's listeners are told of it one
   * after the other.
   */
  def addTo(progress: StreamingQueryProgress): Unit =
    Option(reported.remove(progress.id.toString -> progress.batchId)).foreach { stores =>
      val observed: java.util.Map[String, Row] = progress.observedMetrics
      observed.putAll(stores.map { case (store, row) => s"redis_state.$store" -> row }.asJava)
    }

  def numbers(figures: String): Map[String, Long] = parse(figures).extract[Map[String, Long]]

  private def row(numbers: Map[String, Long]): Row = {
    val sorted = numbers.toSeq.sortBy(_._1)
    new GenericRowWithSchema(
      sorted.map(_._2).toArray,
      StructType(sorted.map { case (name, _) => StructField(name, LongType, nullable = false) }))
  }
}

private[redisstate] final case class Figure(name: String, kind: String, meaning: String) {
  def metric(context: SparkContext): SQLMetric = kind match {
    case "size" => SQLMetrics.createSizeMetric(context, meaning)
    case "timing" => SQLMetrics.createTimingMetric(context, meaning)
    case _ => SQLMetrics.createMetric(context, meaning)
  }
}

/**
 * Leaves the row of the figures out, as its condition says; a session whose planner does not know
 * it makes a plain filter of it. Such are the other sessions whose rows meet those of a batch.
 */
private[redisstate] final class StateFigures(
    condition: Expression,
    child: LogicalPlan,
    val store: String,
    val figures: Seq[Figure])
    extends Filter(condition, child) {

  override protected def otherCopyArgs: Seq[AnyRef] = Seq(store, figures)

  override protected def withNewChildInternal(newChild: LogicalPlan): Filter =
    new StateFigures(condition, newChild, store, figures)
}

private[redisstate] object StateFigures {

  /**
   * Filters by a condition that depends on the partition, so that Spark neither joins it with
   * another filter nor moves it.
   */
  def apply(
      child: LogicalPlan,
      column: Attribute,
      store: String,
      figures: Seq[Figure]): StateFigures = {
    val here = GreaterThanOrEqual(SparkPartitionID(), Literal(0))
    new StateFigures(And(IsNull(column), here), child, store, figures)
  }
}

private[redisstate] object StateFiguresStrategy extends SparkStrategy {
  def addTo(session: SparkSession): Unit = synchronized {
    val methods = session.experimental
    if (!methods.extraStrategies.contains(this)) methods.extraStrategies :+= this
  }

  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case node: StateFigures =>
      Seq(StateFiguresExec(node.store, node.figures, planLater(node.child)))
    case _ => Nil
  }
}

/** Counts in the UI what the last column says. */
private[redisstate] final case class StateFiguresExec(
    store: String,
    figures: Seq[Figure],
    child: SparkPlan)
    extends UnaryExecNode {

  override def nodeName: String = s"Redis state of $store"
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering

  override lazy val metrics: Map[String, SQLMetric] =
    figures.map(figure => figure.name -> figure.metric(sparkContext)).toMap

  override protected def doExecute(): RDD[InternalRow] = {
    val (last, counted) = (output.size - 1, metrics)
    child.execute().mapPartitionsInternal { rows =>
      rows.filter { row =>
        val isRow = row.isNullAt(last)
        if (!isRow) {
          BatchFigures.numbers(row.getString(last)).foreach { case (name, number) =>
            counted.get(name).foreach(_.add(number))
          }
        }
        isRow
      }
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): StateFiguresExec =
    copy(child = newChild)
}
