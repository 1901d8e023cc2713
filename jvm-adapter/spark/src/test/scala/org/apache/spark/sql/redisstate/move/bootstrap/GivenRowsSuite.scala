package org.apache.spark.sql.redisstate.move.bootstrap

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.util.{ArrayBasedMapData, GenericArrayData}
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.redisstate.move.engine.{FamilySpec, MovedRow, StoreSpec}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.MultiValue

/**
 * Nulls inside of values, and floating-point keys. Spark's schema files of Python programs never
 * declare them.
 */
class GivenRowsSuite extends AnyFunSuite {
  private val variables =
    """{"stateVariables":[{"stateName":"v","stateVariableType":"ListState","ttlEnabled":false},
      |{"stateName":"t","stateVariableType":"ValueState","ttlEnabled":true}]}""".stripMargin

  private def columns(operator: String, key: StructType, value: StructType): FamilyColumns = {
    val isProcessor = operator == "transformWithStateExec"
    val encoder = NoPrefixKeyStateEncoderSpec(key)
    val families =
      if (!isProcessor) Seq(FamilySpec("default", key, value, encoder, multiValue = false))
      else {
        val count = new StructType().add("count", LongType)
        Seq(
          FamilySpec("$rowCounter_v", key, count, encoder, multiValue = false),
          FamilySpec("v", key, value, encoder, multiValue = true))
      }
    val properties = if (isProcessor) variables else ""
    val spec = StoreSpec(0, operator, properties, None, "default", 2, families, None)
    FamilyColumns.of(spec, Map.empty).head.toOption.get
  }

  private def made(columns: FamilyColumns, row: InternalRow): Seq[MovedRow] =
    GivenRows(columns, columns.wanted.asNullable, "UTC").maker(row)

  private def row(bytes: Array[Byte], columns: Int): UnsafeRow = {
    val found = new UnsafeRow(columns)
    found.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length)
    found
  }

  private val text = new StructType().add("k", StringType)
  private val key = UTF8String.fromString("a")

  test("a null is found at any depth, and named") {
    val inner = new StructType().add("n", LongType, nullable = false)
    val value = new StructType()
      .add("s", inner)
      .add("list", ArrayType(inner, containsNull = false))
      .add("map", MapType(StringType, LongType, valueContainsNull = false))
    val wanted = columns("flatMapGroupsWithState", text, new StructType().add("groupState", value))
    def one(s: Any, list: Any, map: Any) = InternalRow(key, InternalRow(s, list, map))
    val none = new GenericArrayData(Array[Any]())
    val good = InternalRow(1L)
    Seq(
      one(InternalRow(null), none, null) -> "'groupState': 's': 'n'",
      one(good, new GenericArrayData(Array[Any](null)), null) -> "'groupState': 'list': an element",
      one(good, new GenericArrayData(Array[Any](InternalRow(null))), null) ->
        "'groupState': 'list': 'n'",
      one(good, none, ArrayBasedMapData(Array[Any](key), Array[Any](null))) ->
        "'groupState': 'map': an element"
    ).foreach { case (row, path) =>
      val error = intercept[ConfigException](made(wanted, row))
      assert(error.getMessage.contains(s"$path is null in a row"))
    }
    Seq(one(null, null, null), InternalRow(key, null)).foreach(made(wanted, _))
  }

  test("all zeros of a grouping key are one, and all NaN; other keys are as they are") {
    val doubles = new StructType().add("k", DoubleType)
    val value = new StructType().add("count", LongType)
    def keys(operator: String, found: Double*) = found
      .map(one => made(columns(operator, doubles, value), InternalRow(one, 1L)).head.key.toSeq)
      .distinct.size
    val odd = java.lang.Double.longBitsToDouble(0x7ff8000000000001L)
    assert(keys("stateStoreSave", 0.0, -0.0) == 1)
    assert(keys("stateStoreSave", Double.NaN, odd) == 1)
    assert(keys("dedupe", 0.0, -0.0) == 2)
  }

  test("a list has its elements in their order, and its length beside it") {
    val pair = new StructType().add("a", LongType).add("b", StringType, nullable = false)
    val wanted = columns("transformWithStateExec", text, pair)
    assert(wanted.wanted.toDDL ==
      "k STRING,values ARRAY<STRUCT<a: BIGINT, b: STRING NOT NULL>> NOT NULL")
    def one(elements: Any*) = InternalRow(key, new GenericArrayData(elements.toArray))
    val rows = made(wanted, one(InternalRow(2L, key), InternalRow(1L, key)))
    val (list, count) = (rows.head, rows.last)
    val found = MultiValue.elements(list.value, 0, list.value.length).map(row(_, 2).getLong(0))
    assert(found.toSeq == Seq(2L, 1L))
    assert((list.family, count.family, row(count.value, 1).getLong(0)) == ((1, 0, 2L)))
    Seq(
      one() -> "a list in the column 'values' is empty",
      one(null) -> "an element of values is null",
      one(InternalRow(1L, null)) -> "values: 'b' is null",
      InternalRow(key, null) -> "values is null"
    ).foreach { case (row, found) =>
      assert(intercept[ConfigException](made(wanted, row)).getMessage.contains(found))
    }
  }

  test("a variable with a time to live takes no rows") {
    val family = FamilySpec("t", text, text, NoPrefixKeyStateEncoderSpec(text), multiValue = false)
    val spec =
      StoreSpec(0, "transformWithStateExec", variables, None, "default", 2, Seq(family), None)
    val refused = FamilyColumns.of(spec, Map.empty).flatMap(_.left.toOption)
    assert(refused.map(_.variable) == Seq("v", "t"))
    assert(refused.last.why.startsWith("it has a time to live"))
  }
}
