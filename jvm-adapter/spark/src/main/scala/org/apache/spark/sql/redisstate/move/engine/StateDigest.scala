package org.apache.spark.sql.redisstate.move.engine

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.unsafe.types.UTF8String

/**
 * Digest of rows, independent of their order. Each row has two 64-bit hashes (Spark's XXH64 with
 * two seeds) of its column family, its key and its values in their order; each hash is added up
 * modulo 2^64. It finds a fault, and is no proof against deceit.
 */
final case class StateDigest(rows: Long, bytes: Long, first: Long, second: Long) {

  /** 32 hexadecimal digits. */
  def text: String = f"$first%016x$second%016x"

  def +(other: StateDigest): StateDigest = StateDigest(
    rows + other.rows,
    bytes + other.bytes,
    first + other.first,
    second + other.second)
}

object StateDigest {
  val Empty: StateDigest = StateDigest(0, 0, 0, 0)
}

/** Adds rows up. For one thread. */
private[redisstate] final class DigestSum(families: Seq[String]) {
  import DigestSum._

  private val seeds =
    families.map(name => XXH64.hashUTF8String(UTF8String.fromString(name), FirstSeed)).toArray
  private var rows, bytes, first, second = 0L

  def add(entry: StateEntry): Unit = {
    val key = entry.key
    var one = hash(key, seeds(entry.family))
    var two = hash(key, ~seeds(entry.family))
    bytes += key.getSizeInBytes
    if (entry.list == null) {
      one = hash(entry.value, one)
      two = hash(entry.value, two)
      bytes += entry.value.getSizeInBytes
    } else {
      entry.list.foreach { value =>
        one = hash(value, one)
        two = hash(value, two)
        bytes += value.getSizeInBytes
      }
    }
    rows += 1
    first += one
    second += two
  }

  def result: StateDigest = StateDigest(rows, bytes, first, second)

  private def hash(row: UnsafeRow, seed: Long): Long =
    XXH64.hashUnsafeBytes(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes, seed)
}

private object DigestSum {
  private val FirstSeed = 42L
}
