package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/**
 * A split block Bloom filter over bucketing hashes (docs/format.md, section 17). Immutable.
 *
 * @param lines 32 bytes each
 */
private[core] final class HashFilter private (lines: Array[Byte]) extends RowFilter {
  import HashFilter._

  private val count = lines.length / LineBytes

  override def bytes: Long = lines.length.toLong + ObjectBytes

  override def denies(hash: Int): Boolean = {
    val x = mixed(hash)
    val line = lineOf(x, count)
    var word = 0
    while (word < Salts.length && isSet(line, word, bitOf(x, word))) word += 1
    word < Salts.length
  }

  private def isSet(line: Int, word: Int, bit: Int): Boolean =
    (lines(line + 4 * word + (bit >> 3)) >> (bit & 7) & 1) != 0

  /** Content of the key `b` of a directory block. */
  def toBytes: Array[Byte] = lines
}

private[core] object HashFilter {
  val LineBytes = 32

  /** Longest filter of one directory block. */
  val BytesMax: Int = 1 << 20
  private val HashBits = 10L

  /** Most hashes that fit into a filter. */
  val HashesMax: Long = 8L * BytesMax / HashBits
  private val ObjectBytes = 48L

  /** Most bytes of the filter of so many hashes. */
  def bytesOf(hashes: Long): Long = HashBits * hashes / 8 + LineBytes + ObjectBytes

  private val Salts = Array(0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b,
    0x9efc4947, 0x5c6bfb31)

  /**
   * Returns the filter of some hashes.
   *
   * @param hashes the first `count` of them, which are sorted here; some may be equal
   * @return None if it would be too long
   */
  def of(hashes: Array[Int], count: Int): Option[HashFilter] = {
    java.util.Arrays.sort(hashes, 0, count)
    var distinct = 0
    var i = 0
    while (i < count) {
      if (i == 0 || hashes(i) != hashes(i - 1)) distinct += 1
      i += 1
    }
    val lines = math.max(1L, (HashBits * distinct + 8 * LineBytes - 1) / (8 * LineBytes))
    Option.when(lines * LineBytes <= BytesMax) {
      val bytes = new Array[Byte](lines.toInt * LineBytes)
      i = 0
      while (i < count) {
        add(bytes, lines.toInt, hashes(i))
        i += 1
      }
      new HashFilter(bytes)
    }
  }

  private def add(bytes: Array[Byte], lines: Int, hash: Int): Unit = {
    val x = mixed(hash)
    val line = lineOf(x, lines)
    var word = 0
    while (word < Salts.length) {
      val bit = bitOf(x, word)
      val at = line + 4 * word + (bit >> 3)
      bytes(at) = (bytes(at) | (1 << (bit & 7))).toByte
      word += 1
    }
  }

  /** @throws FormatException if no filter has this length */
  def read(bytes: Array[Byte]): HashFilter = {
    if (bytes.length == 0 || bytes.length % LineBytes != 0 || bytes.length > BytesMax)
      throw new FormatException("the directory has a filter of a wrong length")
    new HashFilter(bytes)
  }

  private def mixed(hash: Int): Long = {
    var x = (hash & 0xffffffffL) * 0x9e3779b97f4a7c15L + 0x632be59bd9b4e019L
    x ^= x >>> 32
    x *= 0xd6e8feb86659fd93L
    x ^ (x >>> 32)
  }

  /** Offset of the line of a hash. */
  private def lineOf(x: Long, lines: Int): Int = (((x >>> 32) * lines) >>> 32).toInt * LineBytes

  private def bitOf(x: Long, word: Int): Int = (x.toInt * Salts(word)) >>> 27
}
