package org.apache.spark.sql.redisstate.rows

import scala.util.Random

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * A column family with random schemas, and random rows for it out of a small set, so that keys meet
 * again.
 */
private[redisstate] final class FamilyRows(
    val name: String,
    val kind: String,
    val lists: Boolean,
    random: Random,
    ordered: IndexedSeq[DataType] = FamilyRows.Ordered) {
  import FamilyRows._

  private val timestamped = kind.startsWith("timestamp")
  private val ordering = Seq.fill(1 + random.nextInt(3))(ordered(random.nextInt(ordered.size)))
  private val rest = Seq.fill(1 + random.nextInt(2))(Plain(random.nextInt(Plain.size)))

  val keySchema: StructType = {
    val columns = kind match {
      case "range" => random.shuffle(ordering ++ rest)
      case _ => rest :+ IntegerType
    }
    val fields = columns.zipWithIndex.map { case (t, i) => StructField(s"c$i", t) }
    StructType(if (timestamped) fields :+ StructField("__event_time", LongType, nullable = false)
    else fields)
  }

  /**
   * Key columns passed beside the spec, which have no meaning. Some are missing, as with Spark's
   * join state format 4.
   */
  val argument: StructType = StructType(keySchema.dropRight(1))

  val valueSchema: StructType = StructType(Seq(
    StructField("v", LongType),
    StructField("s", StringType)))

  /** Ordinals of the columns that a range scan orders by. */
  private val ordinals: Seq[Int] = {
    val able = keySchema.indices.filter(i => Ordered.contains(keySchema(i).dataType))
    random.shuffle(able).take(1 + random.nextInt(able.size.max(1)))
  }
  private val prefixColumns = 1 + random.nextInt(math.max(1, keySchema.length - 1))

  val spec: KeyStateEncoderSpec = kind match {
    case "none" => NoPrefixKeyStateEncoderSpec(keySchema)
    case "prefix" => PrefixKeyScanStateEncoderSpec(keySchema, prefixColumns)
    case "range" => RangeKeyScanStateEncoderSpec(keySchema, ordinals)
    case "timestamp-prefix" => TimestampAsPrefixKeyStateEncoderSpec(keySchema)
    case "timestamp-postfix" => TimestampAsPostfixKeyStateEncoderSpec(keySchema)
  }

  private val toKey = UnsafeProjection.create(keySchema)
  private val toValue = UnsafeProjection.create(valueSchema)
  private val prefixOf: Option[Seq[Int]] = kind match {
    case "prefix" => Some(0 until prefixColumns)
    case "range" => Some(ordinals)
    case "timestamp-postfix" => Some(0 until keySchema.length - 1)
    case _ => None
  }
  private val toPrefix =
    prefixOf.map(p => UnsafeProjection.create(StructType(p.map(keySchema(_)))))

  def scansPrefixes: Boolean = prefixOf.isDefined
  def scansRanges: Boolean = kind == "range" || timestamped
  def deletesRanges: Boolean = kind == "range"

  private def columns(): Array[Any] = keySchema.fields.map { field =>
    if (field.nullable && random.nextInt(6) == 0) null else valueOf(field.dataType, random)
  }

  def key(): UnsafeRow = toKey(new GenericInternalRow(columns())).copy()

  /** The leading columns of some key. */
  def prefix(): UnsafeRow = {
    val all = columns()
    toPrefix.get(new GenericInternalRow(prefixOf.get.map(all(_)).toArray[Any])).copy()
  }

  /** Two keys that differ in their last column only: a range within one timestamped key. */
  def neighbours(): (UnsafeRow, UnsafeRow) = {
    val one = columns()
    val other = one.clone()
    other(other.length - 1) = valueOf(keySchema.last.dataType, random)
    (
      toKey(new GenericInternalRow(one)).copy(),
      toKey(new GenericInternalRow(other)).copy())
  }

  def value(): UnsafeRow = toValue(new GenericInternalRow(Array[Any](
    random.nextLong(),
    UTF8String.fromString(random.alphanumeric.take(random.nextInt(20)).mkString)))).copy()
}

private[redisstate] object FamilyRows {
  val Kinds: Seq[String] = Seq("none", "prefix", "range", "timestamp-prefix", "timestamp-postfix")

  val Ordered: IndexedSeq[DataType] =
    IndexedSeq(ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)

  /** Spark's Avro reader of keys knows no bytes and shorts. */
  val OrderedInAvro: IndexedSeq[DataType] = Ordered.drop(2)

  private val Plain = IndexedSeq[DataType](StringType, IntegerType, BinaryType, DoubleType)

  private val Longs =
    Seq(
      0L,
      1L,
      -1L,
      2L,
      -2L,
      255L,
      -256L,
      65536L,
      Long.MaxValue,
      Long.MinValue,
      Int.MinValue.toLong)
  private val Doubles = Seq(
    0.0,
    -0.0,
    1.5,
    -1.5,
    Double.NaN,
    Double.PositiveInfinity,
    Double.NegativeInfinity,
    Double.MinPositiveValue,
    -Double.MinPositiveValue,
    Double.MaxValue,
    -1e300)

  private def valueOf(dataType: DataType, random: Random): Any = {
    def one[A](all: Seq[A]): A = all(random.nextInt(all.size))
    dataType match {
      case ByteType => one(Longs).toByte
      case ShortType => one(Longs).toShort
      case IntegerType => one(Longs).toInt
      case LongType => one(Longs)
      case FloatType => one(Doubles).toFloat
      case DoubleType => one(Doubles)
      case StringType => UTF8String.fromString(one(Seq("", "a", "b", "ab", "longer than eight")))
      case BinaryType => one(Seq(Array[Byte](), Array[Byte](0), Array[Byte](-1, 0), Array[Byte](1)))
      case other => throw new IllegalArgumentException(s"no values of $other")
    }
  }
}
