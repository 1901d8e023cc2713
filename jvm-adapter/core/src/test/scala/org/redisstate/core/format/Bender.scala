package org.redisstate.core.format

import scala.util.Random

/**
 * Good bytes with a few changes of the kinds that decoders get wrong; `tests/faults/fuzz.py` does
 * the same.
 */
final class Bender(random: Random) {
  private val heads = Array(0x00, 0x01, 0x7f, 0x80, 0x90, 0xc0, 0xc4, 0xc6, 0xc9, 0xdd, 0xdf, 0xff)
  private val numbers =
    Array(0, 1, 7, 8, 0x7f, 0xff, 0x7fff, 0x7ffffff8, Int.MaxValue, Int.MinValue, -1)

  private def pick[A](of: IndexedSeq[A]): A = of(random.nextInt(of.size))
  private def head(): Byte = pick(heads.toIndexedSeq).toByte

  def apply(good: Array[Byte], other: Array[Byte]): Array[Byte] =
    (0 to random.nextInt(4)).foldLeft(good)((bytes, _) => change(bytes, other))

  private def change(bytes: Array[Byte], other: Array[Byte]): Array[Byte] = {
    val at = random.nextInt(bytes.length + 1)
    val (before, after) = bytes.splitAt(at)
    random.nextInt(9) match {
      case 0 if after.nonEmpty => bytes.updated(at, (bytes(at) ^ (1 << random.nextInt(8))).toByte)
      case 1 if after.nonEmpty => bytes.updated(at, head())
      case 2 => before
      case 3 => before ++ Array.fill(1 + random.nextInt(9))(head()) ++ after
      case 4 => before ++ after.drop(1 + random.nextInt(9))
      case 5 => before ++ after.take(1 + random.nextInt(40)) ++ after
      case 6 =>
        before ++ other.drop(random.nextInt(other.length + 1)).take(1 + random.nextInt(60)) ++ after
      case 7 => before ++ number(random.nextBoolean()) ++ after.drop(4)
      case 8 =>
        // Where an UnsafeRow says how long a value is and where it lies.
        val (words, rest) = bytes.splitAt(at - at % 8)
        words ++ number(little = true) ++ number(little = true) ++ rest.drop(8)
      case _ => bytes
    }
  }

  private def number(little: Boolean): Array[Byte] = {
    val big = new Array[Byte](4)
    Block.putInt(big, 0, pick(numbers.toIndexedSeq))
    if (little) big.reverse else big
  }
}
