package org.apache.spark.sql.redisstate.query

import org.apache.spark.sql.catalyst.expressions.Attribute
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types.{DataType, StructType}

import org.redisstate.core.errors.ConfigException

/** Types of keys whose equality is not that of their bytes, by which a state store goes. */
private[redisstate] object KeyTypes {

  /** Processors by class name, since some do not exist in every Spark minor. */
  private val Processors =
    Set("TransformWithState", "TransformWithStateInPandas", "TransformWithStateInPySpark")

  /**
   * Rejects collated key columns of processors. Spark rejects those of all other operators; here it
   * drops the collation on the way to the state, so no store sees it.
   *
   * @throws ConfigException a key column is collated, or a part of one
   */
  def check(plan: LogicalPlan): Unit =
    for {
      processor <- plan.collect { case node if Processors(node.nodeName) => node }
      column <- keys(processor)
      (path, collated) <- part(column.name, column.dataType)
    } throw new ConfigException(
      s"group by the column '${column.name}': its type at $path is ${collated.sql}, whose equal values may differ in bytes, and the " +
        "state would have a row for each form of a text. Nothing was changed. Group by a text whose bytes are the same for equal " +
        "values, such as collate(lower(...), 'UTF8_BINARY'). To continue an existing checkpoint, group by cast(... as string).")

  /**
   * Returns the grouping columns: Scala's processors name them, Python's take the first ones of the
   * input.
   */
  private def keys(processor: LogicalPlan): Seq[Attribute] =
    processor.productElementNames.zip(processor.productIterator).collect {
      case ("groupingAttributes", columns: Seq[_]) => columns.collect { case one: Attribute => one }
      case ("groupingAttributesLen", count: Int) => processor.children.head.output.take(count)
    }.flatten.toSeq

  /** Returns the innermost type that is not compared by its bytes, with its path. */
  private def part(path: String, dataType: DataType): Option[(String, DataType)] = dataType match {
    case struct: StructType =>
      struct.flatMap(one => part(s"$path.${one.name}", one.dataType)).headOption
    case other => Option.unless(UnsafeRowUtils.isBinaryStable(other))(path -> other)
  }
}
