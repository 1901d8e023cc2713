package org.redisstate.core.format

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.zip.CRC32

import org.redisstate.core.errors.FormatException

/** The envelope of every stored value (docs/format.md, section 4.1). */
object Block {
  val HeaderBytes: Int = 10
  val RawLengthMax: Int = 80 << 20
  private val Magic: Byte = 0xb7.toByte

  /** First byte of a signed block: see [[BlockSigner]]. */
  val SignedMagic: Byte = 0xb8.toByte
  private val CodecNone: Byte = 0
  private val CodecZstd: Byte = 1

  def encode(ident: String, field: String, payload: Array[Byte], length: Int): Array[Byte] =
    encode(ident, field, payload, length, compress = true)

  private[core] def encode(
      ident: String,
      field: String,
      payload: Array[Byte],
      length: Int,
      compress: Boolean): Array[Byte] = {
    if (length > RawLengthMax) {
      throw new FormatException(
        s"$ident field $field: a block of $length bytes is above $RawLengthMax")
    }
    val packed = if (compress) Compression.compress(payload, length, HeaderBytes) else null
    val small = packed != null && packed.length - HeaderBytes < length
    val block = if (small) packed else new Array[Byte](HeaderBytes + length)
    if (!small) System.arraycopy(payload, 0, block, HeaderBytes, length)
    block(0) = Magic
    block(1) = if (small) CodecZstd else CodecNone
    putInt(block, 2, length)
    seal(ident, field, block)
  }

  /** Advice that ends the messages about damaged blocks. */
  private[core] val Advice: String =
    " Nothing of it was used. Restore the data of that Redis from before the damage, or go back to a batch whose state " +
      "is intact: `redis-state doctor` names the batch and the steps."

  /** Writes the check of a block that is whole but for it. */
  private[format] def seal(ident: String, field: String, block: Array[Byte]): Array[Byte] = {
    putInt(block, 6, checkOf(ident, field, block))
    block
  }

  /** @throws FormatException when the block is damaged, foreign, or of another place */
  def decode(ident: String, field: String, block: Array[Byte]): Array[Byte] = {
    def bad(found: String): Nothing =
      throw new FormatException(s"$ident field $field: $found.$Advice")
    if (block.nonEmpty && block(0) == SignedMagic)
      bad("it is signed: give the key in 'signingKeyFile'")
    if (block.length < HeaderBytes || block(0) != Magic) bad("not a block of redis-state")
    val length = getInt(block, 2)
    if (length < 0 || length > RawLengthMax) bad("the raw length is above the limit")
    if (getInt(block, 6) != checkOf(ident, field, block)) bad("the check does not match")
    val stored = block.length - HeaderBytes
    block(1) match {
      case CodecNone =>
        if (stored != length) bad("the raw length does not match")
        java.util.Arrays.copyOfRange(block, HeaderBytes, block.length)
      case CodecZstd =>
        if (!Compression.states(block, HeaderBytes, stored, length)) {
          bad("the frame does not state the raw length")
        }
        val payload = new Array[Byte](length)
        if (!Compression.decompress(block, HeaderBytes, stored, payload)) {
          bad("the payload does not decompress to its length")
        }
        payload
      case other => bad(s"codec $other is unknown to this release")
    }
  }

  /** Returns whether the check of a block is right, without a look at its payload. */
  private[core] def isIntact(ident: String, field: String, block: Array[Byte]): Boolean =
    block.length >= HeaderBytes && block(0) == Magic &&
      getInt(block, 6) == checkOf(ident, field, block)

  /** The four check bytes of a block, as the segment checksum wants them. */
  def check(block: Array[Byte]): Int = getInt(block, 6)

  private[core] def setCheck(block: Array[Byte], check: Int): Unit = putInt(block, 6, check)

  private def checkOf(ident: String, field: String, block: Array[Byte]): Int = {
    val crc = new CRC32
    crc.update(ident.getBytes(US_ASCII))
    crc.update(0)
    crc.update(field.getBytes(US_ASCII))
    crc.update(0)
    crc.update(block, 1, 5)
    crc.update(block, HeaderBytes, block.length - HeaderBytes)
    crc.getValue.toInt
  }

  private[core] def putInt(bytes: Array[Byte], at: Int, value: Int): Unit = {
    bytes(at) = (value >>> 24).toByte
    bytes(at + 1) = (value >>> 16).toByte
    bytes(at + 2) = (value >>> 8).toByte
    bytes(at + 3) = value.toByte
  }

  private[core] def getInt(bytes: Array[Byte], at: Int): Int =
    ((bytes(at) & 0xff) << 24) | ((bytes(at + 1) & 0xff) << 16) |
      ((bytes(at + 2) & 0xff) << 8) | (bytes(at + 3) & 0xff)
}
