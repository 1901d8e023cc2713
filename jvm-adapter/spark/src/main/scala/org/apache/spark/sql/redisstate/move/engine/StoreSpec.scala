package org.apache.spark.sql.redisstate.move.engine

import org.json4s.{DefaultFormats, JValue}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.rows.PartitionKeys
import org.apache.spark.sql.types.StructType

/**
 * A column family as Spark's schema file describes it.
 *
 * @param multiValue whether a key has a list of values
 */
final case class FamilySpec(
    name: String,
    keySchema: StructType,
    valueSchema: StructType,
    encoder: KeyStateEncoderSpec,
    multiValue: Boolean) {
  def internal: Boolean = name.startsWith("$")
}

/**
 * One store of an operator, all its partitions.
 *
 * @param operatorProperties what Spark's operator metadata says of a processor, as JSON; else empty
 * @param formatVersion of the state of a join, as Spark pinned it; None for other operators
 * @param families in a fixed order: a row names its family by the position
 * @param schemas all schemas that rows may have been written with; None for an operator whose
 *   schema does not change
 */
final case class StoreSpec(
    operator: Long,
    operatorName: String,
    operatorProperties: String,
    formatVersion: Option[Int],
    name: String,
    partitions: Int,
    families: Seq[FamilySpec],
    schemas: Option[StateSchemaMetadata]) {

  /** Returns whether the store has column families, by the rule of Spark's own rewriter. */
  def usesFamilies: Boolean = families.exists(_.name != StateStore.DEFAULT_COL_FAMILY_NAME)

  /** Types of a processor's state variables, by name. */
  def variables: Map[String, String] =
    if (operatorProperties.isEmpty) Map.empty
    else {
      implicit val formats: DefaultFormats.type = DefaultFormats
      ((parse(operatorProperties): JValue) \ "stateVariables").children.map { variable =>
        (variable \ "stateName").extract[String] -> (variable \ "stateVariableType").extract[String]
      }.toMap
    }

  /**
   * Family that a provider is initialised with; a join whose families all have names has no default
   * one.
   */
  def default: FamilySpec =
    families.find(_.name == StateStore.DEFAULT_COL_FAMILY_NAME).getOrElse {
      val some = families.head
      some.copy(
        name = StateStore.DEFAULT_COL_FAMILY_NAME,
        encoder = NoPrefixKeyStateEncoderSpec(some.keySchema),
        multiValue = false)
    }

  /**
   * Positions of the families that may hold rows: a processor never writes into the default one.
   */
  def filled: Seq[Int] = families.indices.filter { i =>
    !(usesFamilies && families(i).name == StateStore.DEFAULT_COL_FAMILY_NAME)
  }

  /**
   * Declares to a store the families that it does not know by itself.
   *
   * @param declare as Spark's `createColFamilyIfAbsent`
   */
  def tell(
      declare: (String, StructType, StructType, KeyStateEncoderSpec, Boolean, Boolean) => Unit)
      : Unit =
    filled.map(families).filter(_.name != StateStore.DEFAULT_COL_FAMILY_NAME).foreach { family =>
      declare(
        family.name,
        family.keySchema,
        family.valueSchema,
        family.encoder,
        family.multiValue,
        family.internal)
    }

  /**
   * Returns whether only the first partition exists, though Spark's metadata gives it as many as
   * the others have.
   */
  def isSingle: Boolean = PartitionKeys.isSingle(operatorName, default.keySchema)

  override def toString: String = s"operator $operator ($operatorName) store $name"
}

/**
 * Location of stores at one version.
 *
 * @param stateRoot the checkpoint's state folder
 * @param version of every store: the number of the last committed batch, plus 1
 * @param conf as the query has it, the provider's class with it
 * @param runId what the provider is told; one for all tasks
 * @param uids in checkpoint format 2 Spark's unique id of each version, by operator, partition and
 *   store; else empty
 */
final case class StateSide(
    stateRoot: String,
    version: Long,
    conf: StateStoreConf,
    runId: String,
    uids: Map[Long, Seq[Seq[String]]]) {
  def provider: String = conf.providerClass

  /** @param store position of the store in its operator */
  def uid(operator: Long, partition: Int, store: Int): Option[String] =
    uids.get(operator).map(_(partition)(store))
}
