package org.apache.spark.sql.redisstate.checkpoint

import org.apache.hadoop.conf.Configuration
import org.json4s.{DefaultFormats, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}
import org.apache.spark.sql.redisstate.executor.RegisteredStores

import org.redisstate.core.format.Family
import org.redisstate.core.protocol.RunRegistry

/**
 * Entry of an operator in the registry: its name, its families, and its number of partitions. A
 * task knows the number of tasks of its stage, which may differ: a coalesce behind the operator
 * leaves fewer tasks, each with several partitions, and a union more.
 */
private[redisstate] final case class OperatorListing(
    registry: RunRegistry,
    id: StateStoreId,
    family: Family,
    hadoopConf: Configuration) {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  /**
   * Writes the entry; each partition calls this before its first write.
   *
   * @param tasks of the stage; 0 if that is not known
   */
  def put(tasks: Int): Unit =
    if (id.partitionId == StateStore.PARTITION_ID_TO_CHECK_SCHEMA) {
      val metadata = this.metadata()
      val planned = metadata.flatMap(PlannedStores.partitionsIn(_).get(id.storeName))
      planned.filter(_ <= tasks).orElse(known.map(math.max(_, tasks))) match {
        case Some(partitions) =>
          registry.putOperator(id.operatorId, id.storeName, partitions, json(metadata, partitions))
        case None =>
          registry.growOperator(id.operatorId, id.storeName, tasks, json(metadata, tasks))
      }
    } else if (id.partitionId >= tasks && tasks > 0) {
      val partitions = id.partitionId + 1
      val row = json(metadata(), partitions)
      registry.growOperator(id.operatorId, id.storeName, partitions, row)
    }

  private def known: Option[Int] =
    registry.field(s"op:${id.operatorId}:${id.storeName}").flatMap(RegisteredStores.partitionsIn)

  private def json(metadata: Option[JValue], partitions: Int): String = {
    val row = List(
      render(family.id),
      render(family.name),
      render(family.kind.name),
      render(family.params.toList),
      parse(family.keySchema),
      parse(family.valueSchema),
      render(family.multiValue),
      render(family.internal)
    )
    val name =
      metadata.flatMap(found => (found \ "operatorInfo" \ "operatorName").extractOpt[String])
    compact(render(
      ("partitions" -> partitions) ~ ("operator" -> name.getOrElse("")) ~ ("families" -> List(
        row))))
  }

  private def metadata(): Option[JValue] =
    PlannedStores.metadata(id.checkpointRootLocation, id.operatorId, hadoopConf)
}
