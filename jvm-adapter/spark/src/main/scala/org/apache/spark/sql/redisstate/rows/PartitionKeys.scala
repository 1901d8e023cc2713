package org.apache.spark.sql.redisstate.rows

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.types.StructType

import org.redisstate.core.errors.ConfigException

/**
 * Columns of a state key by which Spark spreads the rows of an operator over partitions. Spark has
 * the same since 4.2, for the offline repartition of RocksDB's state:
 * `StatePartitionKeyExtractorFactory`.
 *
 * @param columns none where all rows are in partition 0: an aggregation without a key, a limit
 */
private[redisstate] final case class PartitionKeys(columns: Seq[Expression]) {

  /**
   * Returns a function for one thread. A key may have more columns behind those of its schema: join
   * state format 4 leaves the event time out.
   */
  def of(partitions: Int): UnsafeRow => Int =
    if (columns.isEmpty) _ => 0
    else {
      // What an exchange in front of a stateful operator computes (`StatefulOpClusteredDistribution`).
      val hash = HashPartitioning(columns, partitions).partitionIdExpression
      val number = UnsafeProjection.create(Seq(hash))
      key => number(key).getInt(0)
    }
}

private[redisstate] object PartitionKeys {

  /** Spark's name of the family of an operator that has one alone. */
  private val DefaultFamily = "default"
  private val MapState = "MapState"

  /** Operators that group by the whole key. */
  private val ByKey = Set(
    "stateStoreSave",
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState")

  private val Processors = Set(
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec")

  /** Indexes of a processor's state variable whose keys are those of the groups. */
  private val OfGroups = Seq("$min_", "$count_", "$rowCounter_")
  private val Expiry = "$ttl_"
  private val Timers = Seq("$procTimers", "$eventTimers")
  private val ByTime = "_timestampToKey"

  /** Returns whether an operator is a `transformWithState`, whose families are state variables. */
  def isProcessor(operator: String): Boolean = Processors(operator)

  /** Returns whether an operator always has one partition. */
  def isSingle(operator: String, keySchema: StructType): Boolean =
    operator == "globalLimit" || (operator == "stateStoreSave" && keySchema.isEmpty)

  /**
   * @param operator Spark's name, as in the operator's metadata
   * @param keySchema of the family, as in the schema file of the state or in its description
   * @param variables of a `transformWithState`, as in the operator's metadata: name → type
   * @throws ConfigException nobody knows how Spark spreads such rows
   */
  def apply(
      operator: String,
      store: String,
      family: String,
      keySchema: StructType,
      variables: Map[String, String]): PartitionKeys = {
    def unknown =
      new ConfigException(
        s"the number of partitions of the operator '$operator' cannot be changed: redis-state does not know how Spark distributes the rows " +
          s"of its store '$store', family '$family', over partitions. Nothing was changed. Start a new checkpoint.")
    def isMap(variable: String) = variables.getOrElse(variable, throw unknown) == MapState
    operator match {
      case "globalLimit" => PartitionKeys(Nil)
      case _ if ByKey(operator) => PartitionKeys(columns(keySchema))
      case "sessionWindowStateStoreSaveExec" => PartitionKeys(columns(keySchema).init)
      case "symmetricHashJoin" =>
        // Formats 1 and 2 have a store for each kind of rows, 3 and 4 a family.
        val kind = if (family == DefaultFamily) store else family
        kind.stripPrefix("left-").stripPrefix("right-") match {
          case "keyWithIndexToValue" => PartitionKeys(columns(keySchema).init)
          case "keyToNumValues" | "keyWithTsToValues" | "tsWithKey" =>
            PartitionKeys(columns(FamilyLayout.withoutTime(keySchema)))
          case _ => throw unknown
        }
      case _ if Processors(operator) =>
        if (Timers.exists(family.startsWith))
          PartitionKeys(Seq(columns(keySchema)(if (family.endsWith(ByTime)) 1 else 0)))
        else if (family.startsWith(Expiry)) {
          val element = columns(keySchema)(1)
          val isOfMap = isMap(family.stripPrefix(Expiry))
          PartitionKeys(Seq(if (isOfMap) GetStructField(element, 0) else element))
        } else if (OfGroups.exists(family.startsWith)) PartitionKeys(columns(keySchema))
        else if (isMap(family)) PartitionKeys(columns(keySchema).take(1))
        else PartitionKeys(columns(keySchema))
      case _ => throw unknown
    }
  }

  private def columns(schema: StructType): Seq[Expression] =
    schema.fields.toSeq.zipWithIndex.map { case (field, i) =>
      BoundReference(i, field.dataType, nullable = true)
    }
}
