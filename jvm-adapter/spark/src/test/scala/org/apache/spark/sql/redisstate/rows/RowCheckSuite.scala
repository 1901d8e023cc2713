package org.apache.spark.sql.redisstate.rows

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.util.{GenericArrayData, UnsafeRowUtils}
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** Rows of random schemas, sound and changed: the quick look never passes what Spark's check refuses. */
class RowCheckSuite extends AnyFunSuite {
  import RowCheckSuite._

  private def bytesOf(row: UnsafeRow): Array[Byte] =
    Array.fill[Byte](Ahead)(-1) ++ Array(RowCodec.RowVersion) ++ row.getBytes

  private def byOurs(check: RowCheck, stored: Array[Byte]): String =
    check.fault(stored, Ahead, stored.length - Ahead)

  private def bySpark(schema: StructType, stored: Array[Byte]): String = {
    val row =
      RowCodec.pointTo(new UnsafeRow(schema.length), stored, Ahead, stored.length - Ahead)
    UnsafeRowUtils.validateStructuralIntegrityWithReason(row, schema).orNull
  }

  /** Ten sound rows of each of some random schemas. */
  private def onRows(random: Random)(use: (StructType, RowCheck, Array[Byte]) => Unit): Unit =
    for (_ <- 1 to Schemas) {
      val schema = randomSchema(random)
      val check = new RowCheck(schema)
      val encode = UnsafeProjection.create(schema)
      for (_ <- 1 to 10) use(schema, check, bytesOf(encode(randomRow(schema, random))))
    }

  test("sound rows are found so without Spark's check") {
    onRows(new Random(1)) { (schema, check, stored) =>
      val at = Ahead + RowCodec.VersionBytes
      assert(bySpark(schema, stored) == null)
      assert(check.isSound(stored, at, stored.length - at), schema.simpleString)
    }
  }

  test("of changed rows it says what Spark's check says") {
    val random = new Random(2)
    var refused, passed = 0
    onRows(random) { (schema, check, sound) =>
      for (_ <- 1 to 20) {
        val stored = changed(sound, schema, random)
        val ours = byOurs(check, stored)
        if (ours == null) passed += 1 else refused += 1
        if (ours == null || !OnlyOurs.exists(ours.contains))
          assert(ours == bySpark(schema, stored), schema.simpleString)
      }
    }
    assert(refused > Schemas * 10 && passed > Schemas * 10)
  }

  test("a null interval has a place of its own") {
    val schema = new StructType().add("a", CalendarIntervalType)
    val row = UnsafeProjection.create(schema)
    val stored = bytesOf(row(new GenericInternalRow(Array[Any](null))))
    assert(bySpark(schema, stored) != null)
    val check = new RowCheck(schema)
    assert(byOurs(check, stored) == null)
    val word = Ahead + RowCodec.VersionBytes + 8
    stored(word) = 8
    assert(byOurs(check, stored) != null)
  }

  test("a place whose end is no Int is refused") {
    val schema = new StructType().add("a", StringType)
    val row = UnsafeProjection.create(schema)
    val stored = bytesOf(row(new GenericInternalRow(Array[Any](UTF8String.fromString("abc")))))
    val word = Ahead + RowCodec.VersionBytes + 8
    (0 until 8).foreach(i => stored(word + i) = if (i % 4 == 3) 127 else -1)
    assert(bySpark(schema, stored) == null)
    assert(byOurs(new RowCheck(schema), stored).contains(OnlyOurs.last))
  }

  test("what has no whole words or another version is refused by its head") {
    val check = new RowCheck(new StructType().add("a", IntegerType))
    val row = UnsafeProjection.create(Array[DataType](IntegerType))
    val stored = bytesOf(row(new GenericInternalRow(Array[Any](7))))
    assert(byOurs(check, stored.dropRight(1)).contains("not an UnsafeRow"))
    assert(byOurs(check, stored.take(Ahead)).contains("not an UnsafeRow"))
    stored(Ahead) = 1
    assert(byOurs(check, stored).contains("not an UnsafeRow"))
  }
}

private object RowCheckSuite {
  private val Schemas = 200

  /** Bytes in front of a row, as its key stands in front of a value. */
  private val Ahead = 3

  /** Faults that Spark's check does not know. */
  private val OnlyOurs = Seq("too few for a row", "outside of its row")
  private val Types = IndexedSeq[DataType](
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DateType,
    TimestampType,
    StringType,
    BinaryType,
    DecimalType(10, 2),
    DecimalType(38, 4),
    ArrayType(IntegerType),
    new StructType().add("a", IntegerType).add("b", StringType)
  )

  private def randomSchema(random: Random): StructType = {
    // More than 64 columns have two words of null bits.
    val columns = if (random.nextInt(10) == 0) 60 + random.nextInt(10) else 1 + random.nextInt(6)
    StructType((0 until columns).map(i => StructField(s"c$i", Types(random.nextInt(Types.size)))))
  }

  private def randomRow(schema: StructType, random: Random): GenericInternalRow =
    new GenericInternalRow(schema.fields.map { field =>
      if (random.nextInt(5) == 0) null else randomValue(field.dataType, random)
    })

  private def randomValue(of: DataType, random: Random): Any = of match {
    case BooleanType => random.nextBoolean()
    case ByteType => random.nextInt().toByte
    case ShortType => random.nextInt().toShort
    case IntegerType | DateType => random.nextInt()
    case LongType | TimestampType => random.nextLong()
    case FloatType => random.nextFloat()
    case DoubleType => random.nextGaussian()
    case StringType => UTF8String.fromString(random.nextString(random.nextInt(12)))
    case BinaryType => random.nextBytes(random.nextInt(20))
    case decimal: DecimalType =>
      Decimal(BigDecimal(random.nextInt(), 2), decimal.precision, decimal.scale)
    case ArrayType(element, _) =>
      new GenericArrayData(Array.fill[Any](random.nextInt(4))(randomValue(element, random)))
    case struct: StructType => randomRow(struct, random)
    case other => throw new IllegalArgumentException(s"no values of $other")
  }

  /** With a bit, a byte or a word of the fixed part changed, or with another length. */
  private def changed(sound: Array[Byte], schema: StructType, random: Random): Array[Byte] = {
    val stored = sound.clone()
    val from = Ahead + RowCodec.VersionBytes
    val fixed = UnsafeRow.calculateBitSetWidthInBytes(schema.length) + 8 * schema.length
    val at = from + random.nextInt(fixed)
    random.nextInt(5) match {
      case 0 => stored(at) = (stored(at) ^ (1 << random.nextInt(8))).toByte
      case 1 => stored(at) = random.nextInt().toByte
      case 2 =>
        // What a length or an offset is: small, or far outside.
        val word = from + random.nextInt(fixed / 4) * 4
        val number = if (random.nextBoolean()) random.nextInt(80) else random.nextInt()
        (0 until 4).foreach(i => stored(word + i) = (number >>> (8 * i)).toByte)
      case 3 => return stored.dropRight(8 * (1 + random.nextInt((stored.length - from) / 8)))
      case 4 => return stored ++ Array.fill[Byte](8)(0)
    }
    stored
  }
}
