package org.apache.spark.sql.redisstate.move.bootstrap

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.redisstate.move.engine.MovedRow
import org.apache.spark.sql.types._

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.MultiValue

/**
 * Makes rows of a family from the rows of a DataFrame, as Spark's own operators would write them.
 * Used in tasks.
 *
 * @param keys expressions over a row of the DataFrame
 * @param values of the columns of a value, or of the elements of a list alone
 */
private[redisstate] final class GivenRows private (
    columns: FamilyColumns,
    keys: Seq[Expression],
    values: Seq[Expression])
    extends Serializable {

  /** Returns a function for one thread. */
  def maker: InternalRow => Seq[MovedRow] = {
    val family = columns.family
    val keyOf = UnsafeProjection.create(keys)
    val valueOf = UnsafeProjection.create(values)
    val keyNulls = NullCheck.of(GivenRows.named(columns, columns.keys, family.keySchema))
    val makeValue: UnsafeRow => (Array[Byte], Int) = columns.values match {
      case Some(sources) =>
        val nulls = NullCheck.of(GivenRows.named(columns, sources, family.valueSchema))
        row => {
          refuseNull(nulls(row))
          (row.getBytes.clone(), 1)
        }
      case None => elements(family.valueSchema)
    }
    val countOf = UnsafeProjection.create(Array[DataType](LongType))
    row => {
      val key = keyOf(row)
      refuseNull(keyNulls(key))
      val bytes = key.getBytes.clone()
      val (value, length) = makeValue(valueOf(row))
      val count = columns.counter.map { at =>
        MovedRow(at, bytes, countOf(InternalRow(length.toLong)).getBytes.clone())
      }
      Seq(MovedRow(columns.at, bytes, value)) ++ count
    }
  }

  private def elements(schema: StructType): UnsafeRow => (Array[Byte], Int) = {
    val project = UnsafeProjection.create(schema)
    val nulls = NullCheck.of(schema)
    val name = columns.wanted.last.name
    def element(list: ArrayData, i: Int): InternalRow =
      if (schema.length == 1) InternalRow(list.get(i, schema.head.dataType))
      else {
        if (list.isNullAt(i)) refuseNull(Some(s"an element of $name"))
        list.getStruct(i, schema.length)
      }
    row => {
      if (row.isNullAt(0)) refuseNull(Some(name))
      val list = row.getArray(0)
      if (list.numElements() == 0) throw GivenRows.refused(
        columns,
        s"a list in the column '$name' is empty, and Spark keeps no empty list. Omit such rows.")
      val parts = Array.tabulate(list.numElements()) { i =>
        val one = project(element(list, i))
        refuseNull(nulls(one).map(within => s"$name: $within"))
        one.getBytes.clone()
      }
      (MultiValue.encode(parts), parts.length)
    }
  }

  private def refuseNull(column: Option[String]): Unit = column.foreach { name =>
    throw GivenRows.refused(columns, s"$name is null in a row, but the state allows no null there.")
  }
}

private[redisstate] object GivenRows {
  import ColumnSource._

  /** @throws ConfigException the DataFrame's columns are others than those that are wanted */
  def apply(columns: FamilyColumns, frame: StructType, timeZone: String): GivenRows = {
    val wanted = columns.wanted
    val twice = frame.fieldNames.diff(frame.fieldNames.distinct)
    val problems = Seq(
      "missing" -> wanted.fieldNames.diff(frame.fieldNames),
      "not of the state" -> frame.fieldNames.distinct.diff(wanted.fieldNames),
      "given twice" -> twice.distinct
    ).collect {
      case (what, names) if names.nonEmpty => s"${names.mkString("'", "', '", "'")} $what"
    }
    if (problems.nonEmpty) throw other(columns, s"of its columns ${problems.mkString("; ")}")
    val expressions: Seq[Expression] = wanted.map { field =>
      val at = frame.fieldIndex(field.name)
      val found = BoundReference(at, frame(at).dataType, nullable = true)
      if (!fits(found.dataType, field.dataType)) {
        throw other(
          columns,
          s"its column '${field.name}' is ${found.dataType.sql}, which is not safely ${field.dataType.sql}")
      }
      val to = field.dataType.asNullable
      if (found.dataType.asNullable == to) found
      else Cast(found, to, Some(timeZone), ansiEnabled = true)
    }
    def expressionOf(source: ColumnSource): Expression = source match {
      case Given(at) => expressions(at)
      case StartOf(at) => GetStructField(expressions(at), 0)
      case Void => Literal(null, NullType)
    }
    val groups = columns.keys.collect { case Given(at) => at }.toSet
    def normal(source: ColumnSource): Expression = source match {
      case Given(at) if columns.normalizesKeys && groups(at) =>
        NormalizeFloatingNumbers.normalize(expressions(at))
      case other => expressionOf(other)
    }
    val values = columns.values.fold(Seq(expressions.last))(_.map(normal))
    new GivenRows(columns, columns.keys.map(normal), values)
  }

  /** Returns whether a type converts to another without loss, and with the same names in structs. */
  private def fits(from: DataType, to: DataType): Boolean = (from, to) match {
    case (a: StructType, b: StructType) =>
      a.fieldNames.sameElements(b.fieldNames) &&
      a.zip(b).forall { case (one, other) => fits(one.dataType, other.dataType) }
    case (a: ArrayType, b: ArrayType) => fits(a.elementType, b.elementType)
    case (a: MapType, b: MapType) => fits(a.keyType, b.keyType) && fits(a.valueType, b.valueType)
    case (a, b) => a == b || isNarrower(a, b)
  }

  /**
   * Returns whether every value of a type is also one of the wider type, whatever the zone or
   * format.
   */
  private def isNarrower(from: DataType, to: DataType): Boolean = (from, to) match {
    case (NullType, _) => true
    case (a: IntegralType, b: IntegralType) => a.defaultSize < b.defaultSize
    case (a: IntegralType, b: DecimalType) => b.isWiderThan(a)
    case (a: DecimalType, b: DecimalType) => b.isWiderThan(a)
    case (ByteType | ShortType, FloatType) => true
    case (ByteType | ShortType | IntegerType | FloatType, DoubleType) => true
    case _ => false
  }

  /** Returns a schema with the column names of a DataFrame, for messages. */
  private def named(
      columns: FamilyColumns,
      sources: Seq[ColumnSource],
      schema: StructType): StructType =
    StructType(schema.zip(sources).map {
      case (field, Given(at)) =>
        columns.wanted(at).copy(nullable = field.nullable && columns.wanted(at).nullable)
      case (field, StartOf(at)) => field.copy(columns.wanted(at).name, nullable = false)
      case (field, Void) => field
    })

  def refused(columns: FamilyColumns, why: String) =
    new ConfigException(s"give state to ${columns.name}: $why Nothing was changed.")

  private def other(columns: FamilyColumns, found: String) = refused(
    columns,
    s"$found. The rows need the columns: ${columns.wanted.toDDL}.")
}

/** Finds a null where a schema allows none. */
private[redisstate] object NullCheck {

  /** Returns a function that returns the path of the first null. */
  def of(schema: StructType): InternalRow => Option[String] = {
    val checks = schema.fields.zipWithIndex.flatMap { case (field, i) => ofField(field, i) }
    if (checks.isEmpty) _ => None
    else row => checks.iterator.flatMap(_(row)).nextOption()
  }

  private def ofField(field: StructField, at: Int): Option[InternalRow => Option[String]] = {
    val within = ofValue(field.dataType)
    Option.when(!field.nullable || within.isDefined) { row =>
      if (row.isNullAt(at)) Option.when(!field.nullable)(s"'${field.name}'")
      else within.flatMap(_(row.get(at, field.dataType))).map(path => s"'${field.name}': $path")
    }
  }

  private def ofValue(dataType: DataType): Option[Any => Option[String]] = dataType match {
    case schema: StructType if schema.fields.zipWithIndex.exists { case (f, i) =>
          ofField(f, i).isDefined
        } =>
      val check = of(schema)
      Some(value => check(value.asInstanceOf[InternalRow]))
    case ArrayType(element, hasNull) => ofElements(element, hasNull)
        .map(check => value => check(value.asInstanceOf[ArrayData]))
    case MapType(key, value, hasNull) =>
      val checks =
        (ofElements(key, hasNull = true), ofElements(value, hasNull))
      Option.when(checks._1.isDefined || checks._2.isDefined) { found =>
        val map = found.asInstanceOf[org.apache.spark.sql.catalyst.util.MapData]
        checks._1.flatMap(_(map.keyArray())).orElse(checks._2.flatMap(_(map.valueArray())))
      }
    case _ => None
  }

  private def ofElements(
      element: DataType,
      hasNull: Boolean): Option[ArrayData => Option[String]] = {
    val within = ofValue(element)
    Option.when(!hasNull || within.isDefined) { list =>
      (0 until list.numElements()).iterator.flatMap { i =>
        if (list.isNullAt(i)) Option.when(!hasNull)("an element")
        else within.flatMap(_(list.get(i, element)))
      }.nextOption()
    }
  }
}
