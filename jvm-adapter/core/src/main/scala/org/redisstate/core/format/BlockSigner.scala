package org.redisstate.core.format

import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{Files, Path}
import java.security.MessageDigest
import java.util.Arrays
import javax.crypto.Mac
import javax.crypto.spec.SecretKeySpec

import org.redisstate.core.errors.{ConfigException, FormatException}

/**
 * Signs blocks with a key that the server does not hold, and checks those that are read
 * (docs/format.md, section 4.7). For any thread.
 *
 * @param secret at least [[BlockSigner.KeyBytesMin]] bytes
 */
final class BlockSigner(secret: Array[Byte]) {
  import BlockSigner._

  private val key = new SecretKeySpec(secret, Algorithm)
  private val mac = ThreadLocal.withInitial[Mac] { () =>
    val made = Mac.getInstance(Algorithm)
    made.init(key)
    made
  }

  /** Returns the stored form of a block; `segment` is the segment's name in the server. */
  def signed(segment: Array[Byte], field: String, block: Array[Byte]): Array[Byte] = {
    val value = new Array[Byte](1 + TagBytes + block.length)
    value(0) = Block.SignedMagic
    System.arraycopy(block, 0, value, 1 + TagBytes, block.length)
    System.arraycopy(tag(segment, field, value), 0, value, 1, TagBytes)
    value
  }

  /** @throws FormatException when the value was not signed with this key, or not for this place */
  def opened(segment: Array[Byte], field: String, value: Array[Byte]): Array[Byte] = {
    val isSigned = value.length > TagBytes && value(0) == Block.SignedMagic
    if (!isSigned || !MessageDigest.isEqual(
        Arrays.copyOfRange(value, 1, 1 + TagBytes),
        tag(segment, field, value))) {
      throw new FormatException(
        s"field $field of ${new String(segment, US_ASCII)} is not signed with this key. " +
          "A program other than this query's writers changed it, or 'signingKeyFile' has another key " +
          "than the writers'. Nothing of it was used.")
    }
    Arrays.copyOfRange(value, 1 + TagBytes, value.length)
  }

  private def tag(segment: Array[Byte], field: String, value: Array[Byte]): Array[Byte] = {
    val hash = mac.get()
    hash.update(segment)
    hash.update(0.toByte)
    hash.update(field.getBytes(US_ASCII))
    hash.update(0.toByte)
    hash.update(value, 1 + TagBytes, value.length - 1 - TagBytes)
    Arrays.copyOf(hash.doFinal(), TagBytes)
  }

  override def toString: String = "BlockSigner"
}

object BlockSigner {
  val KeyBytesMin: Int = 32
  private val Algorithm = "HmacSHA256"
  private val TagBytes = 16

  /** Bytes that a stored value has more than its block. */
  val ValueOverhead: Long = 1L + TagBytes

  /** @throws ConfigException when the file cannot be read, or is too short */
  def of(file: String): BlockSigner = {
    def bad(found: String, cause: Throwable = null): Nothing = throw new ConfigException(
      s"the signing key: $found. Give in 'signingKeyFile' a file of at least $KeyBytesMin bytes that this user may read, " +
        "on the driver and on every executor, such as `openssl rand -hex 32` makes.",
      cause
    )
    val bytes =
      try Files.readAllBytes(Path.of(file))
      catch { case e: java.io.IOException => bad(e.getClass.getSimpleName, e) }
    val lineEnd = if (bytes.lastOption.contains('\n'.toByte)) 1 else 0
    val before = bytes.dropRight(lineEnd)
    val carriage = if (lineEnd > 0 && before.lastOption.contains('\r'.toByte)) 1 else 0
    val secret = before.dropRight(carriage)
    if (secret.length < KeyBytesMin) bad(s"it has ${secret.length} bytes")
    new BlockSigner(secret)
  }
}
