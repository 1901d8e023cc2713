package org.apache.spark.sql.redisstate.move.bootstrap

import org.json4s.{DefaultFormats, JValue}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.move.engine.{FamilySpec, StoreSpec}
import org.apache.spark.sql.redisstate.rows.PartitionKeys
import org.apache.spark.sql.types._

/** Source of a column of a state's key or value. */
private[redisstate] sealed trait ColumnSource

private[redisstate] object ColumnSource {

  /** @param at position among the wanted columns */
  final case class Given(at: Int) extends ColumnSource

  /** Spark keeps nothing in it. */
  case object Void extends ColumnSource

  /** @param at position of the session's column among the wanted ones */
  final case class StartOf(at: Int) extends ColumnSource
}

/**
 * Columns that a DataFrame needs, so that its rows become those of a family. Their names are those
 * of live reads (docs/reading.md), except for columns that follow from others.
 *
 * @param at position of the family in its store
 * @param variable of a processor; else empty
 * @param counter position of the family with the lengths of these lists, if they have one
 * @param values of the value's columns; of lists None, then the last of `wanted` has the elements
 * @param normalizesKeys whether Spark makes 0.0 of -0.0, and one NaN of all, in these keys
 */
private[redisstate] final case class FamilyColumns(
    spec: StoreSpec,
    at: Int,
    variable: String,
    counter: Option[Int],
    wanted: StructType,
    keys: Seq[ColumnSource],
    values: Option[Seq[ColumnSource]],
    normalizesKeys: Boolean) {
  def family: FamilySpec = spec.families(at)

  /** Families that are written: this one, and the one that follows from it. */
  def families: Set[Int] = Set(at) ++ counter

  /** Name for messages. */
  def name: String = if (variable.isEmpty) spec.toString else s"$spec variable $variable"

  def partitionKeys: PartitionKeys = PartitionKeys(
    spec.operatorName,
    spec.name,
    family.name,
    family.keySchema,
    spec.variables)
}

/** A family without such columns. */
private[redisstate] final case class NoColumns(spec: StoreSpec, variable: String, why: String)

private[redisstate] object FamilyColumns {
  import ColumnSource._
  private implicit val formats: DefaultFormats.type = DefaultFormats

  private val Aggregation = "stateStoreSave"
  private val Sessions = "sessionWindowStateStoreSaveExec"
  private val Groups = Set("flatMapGroupsWithState", "applyInPandasWithState")
  private val Plain = Set(Aggregation, "dedupe", "dedupeWithinWatermark") ++ Groups
  private val Counter = "$rowCounter_"
  private val Elements = "values"

  /** Columns that Spark never leaves empty, though its schema files allow null in every column. */
  private val Times = Set("timeoutTimestamp", "expiresAtMicros")

  /**
   * Returns the columns of each family that a program knows: that of the operator, or one for each
   * state variable.
   */
  def of(
      spec: StoreSpec,
      conf: Map[String, String]): Seq[Either[NoColumns, FamilyColumns]] = {
    def none(variable: String, why: String) = Left(NoColumns(spec, variable, why))
    spec.operatorName match {
      case name if PartitionKeys.isProcessor(name) =>
        variablesOf(spec).map { variable =>
          val at = spec.families.indexWhere(_.name == variable.name)
          if (variable.hasTtl) none(
            variable.name,
            "it has a time to live, and Spark keeps an undocumented index of when each of its values expires")
          else if (at < 0) none(variable.name, "Spark has no schema of it")
          else Right(ofVariable(spec, at, variable.name))
        }
      case Aggregation
          if conf.get(SQLConf.STREAMING_AGGREGATION_STATE_FORMAT_VERSION.key).contains("1") =>
        Seq(none("", "its state has the format of a Spark before 2.4"))
      case name if Groups(name) && isFirstFormat(spec.default.valueSchema) =>
        Seq(none("", "its state has the format of a Spark before 2.4"))
      case Sessions => Seq(Right(ofSessions(spec)))
      case name if Plain(name) => Seq(Right(ofOperator(spec, name == Aggregation)))
      case "symmetricHashJoin" => Seq(none(
          "",
          "a join keeps the rows of both sides under indexes of its own. Start it again on both inputs"))
      case _ => Seq(none("", "how its state is built is not documented"))
    }
  }

  private final case class Variable(name: String, hasTtl: Boolean)

  private def variablesOf(spec: StoreSpec): Seq[Variable] =
    if (spec.operatorProperties.isEmpty) Nil
    else ((parse(spec.operatorProperties): JValue) \ "stateVariables").children.collect {
      case variable
          if !(variable \ "stateVariableType").extractOpt[String].contains("TimerState") =>
        val name = (variable \ "stateName").extract[String]
        val hasTtl = (variable \ "ttlEnabled").extractOpt[Boolean].getOrElse(false) ||
          spec.families.exists(_.name == s"$$ttl_$name")
        Variable(name, hasTtl)
    }.filterNot(_.name.startsWith("$"))

  private def isFirstFormat(value: StructType): Boolean =
    !value.headOption.exists(f => f.name == "groupState" && f.dataType.isInstanceOf[StructType])

  private def ofVariable(spec: StoreSpec, at: Int, variable: String): FamilyColumns = {
    val family = spec.families(at)
    if (!family.multiValue) plain(spec, at, variable, normalizesKeys = false)
    else {
      val fields = family.valueSchema
      val element = if (fields.length == 1) fields.head.dataType else fields
      val hasNull = fields.length == 1 && fields.head.nullable
      val keys = new Names
      family.keySchema.foreach(field => keys.add(field, field.name))
      val elements = StructField(Elements, ArrayType(element, hasNull), nullable = false)
      keys.add(elements, Elements): Unit
      FamilyColumns(
        spec,
        at,
        variable,
        Some(spec.families.indexWhere(_.name == Counter + variable)).filter(_ >= 0),
        StructType(keys.fields),
        family.keySchema.indices.map(Given(_)),
        None,
        normalizesKeys = false
      )
    }
  }

  private def ofOperator(spec: StoreSpec, normalizesKeys: Boolean): FamilyColumns =
    plain(spec, spec.filled.head, "", normalizesKeys)

  private def plain(
      spec: StoreSpec,
      at: Int,
      variable: String,
      normalizesKeys: Boolean): FamilyColumns = {
    val family = spec.families(at)
    val names = new Names
    val keys = family.keySchema.map(field => names.source(field, field.name))
    val keyNames = family.keySchema.fieldNames.toSet
    val values = family.valueSchema.map { field =>
      val isTime = variable.isEmpty && !normalizesKeys && Times(field.name)
      val name = if (keyNames(field.name)) s"value.${field.name}" else field.name
      names.source(if (isTime) required(field) else field, name)
    }
    FamilyColumns(
      spec,
      at,
      variable,
      None,
      StructType(names.fields),
      keys,
      Some(values),
      normalizesKeys)
  }

  /** A value is a whole row: what it is grouped by, the session with it, and what is aggregated. */
  private def ofSessions(spec: StoreSpec): FamilyColumns = {
    val at = spec.filled.head
    val family = spec.families(at)
    val groups = family.keySchema.init
    val (grouping, aggregated) = family.valueSchema.splitAt(family.keySchema.length)
    val session = grouping.indexWhere(field => !groups.exists(_.name == field.name))
    val names = new Names
    grouping.zipWithIndex.foreach { case (field, i) =>
      names.add(if (i == session) required(field) else field, field.name)
    }
    val keys = groups.map(group => Given(grouping.indexWhere(_.name == group.name)))
    val values = grouping.indices.map(Given(_)) ++ aggregated.map { field =>
      val isGroup = grouping.exists(_.name == field.name)
      names.source(field, if (isGroup) s"value.${field.name}" else field.name)
    }
    FamilyColumns(
      spec,
      at,
      "",
      None,
      StructType(names.fields),
      keys :+ StartOf(session),
      Some(values),
      normalizesKeys = true)
  }

  private def required(field: StructField): StructField = field.dataType match {
    case parts: StructType =>
      field.copy(dataType = StructType(parts.map(_.copy(nullable = false))), nullable = false)
    case _ => field.copy(nullable = false)
  }

  /** The wanted columns, as they are found; all names differ. */
  private final class Names {
    private val found = scala.collection.mutable.ArrayBuffer.empty[StructField]

    def fields: Seq[StructField] = found.toSeq

    def source(field: StructField, name: String): ColumnSource =
      if (field.dataType == NullType) Void else Given(add(field, name))

    /** @return its position */
    def add(field: StructField, name: String): Int = {
      val taken = found.map(_.name).toSet
      val free =
        if (taken(name)) Iterator.from(2).map(n => s"$name.$n").find(!taken(_)).get else name
      found += StructField(free, field.dataType, field.nullable)
      found.size - 1
    }
  }
}
