package org.apache.spark.sql.redisstate.system

import java.util.{Arrays, Random}

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.ReadStateStore
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** The rows of the query that all processes play. */
object Rows {
  val KeySchema: StructType = StructType(Seq(StructField("k", StringType)))
  val ValueSchema: StructType =
    StructType(Seq(StructField("v", IntegerType), StructField("pad", BinaryType)))

  /** Number of padding bytes in each value, generated from the value. */
  @volatile var padBytes: Int = 0

  private val toKey = UnsafeProjection.create(KeySchema)
  private val toValue = UnsafeProjection.create(ValueSchema)

  def key(text: String): UnsafeRow = row(toKey, UTF8String.fromString(text))
  def value(number: Int): UnsafeRow = row(toValue, number, pad(number))

  private def row(project: UnsafeProjection, values: Any*): UnsafeRow = project.synchronized {
    project(new GenericInternalRow(values.toArray)).copy()
  }

  /** Bytes that do not compress. */
  private def pad(number: Int): Array[Byte] = {
    val bytes = new Array[Byte](padBytes)
    new Random(number.toLong).nextBytes(bytes)
    bytes
  }

  /** `key=value,…`; a value whose further bytes are wrong has a mark. */
  def told(store: ReadStateStore): String = store.iterator().map { pair =>
    val number = pair.value.getInt(0)
    val whole = Arrays.equals(pair.value.getBinary(1), pad(number))
    s"${pair.key.getUTF8String(0)}=${if (whole) number else -1}"
  }.toSeq.sorted.mkString(",")

  /** Keys of half a MiB each. */
  lazy val large: Seq[UnsafeRow] = {
    val random = new Random(LargeCount.toLong)
    Seq.fill(LargeCount) {
      val bytes = new Array[Byte](LargeBytes)
      random.nextBytes(bytes)
      var i = 0
      while (i < LargeBytes) {
        bytes(i) = (bytes(i) & 0x7f).toByte
        i += 1
      }
      row(toKey, UTF8String.fromBytes(bytes))
    }
  }

  private val LargeCount = 10
  private val LargeBytes = 1 << 19
}
