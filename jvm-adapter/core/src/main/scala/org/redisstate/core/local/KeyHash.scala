package org.redisstate.core.local

import java.util.zip.CRC32

import org.redisstate.core.format.{Bucketing, Family, FamilyKind}

/**
 * Bucketing hash of stored keys, and the families whose rows are kept in key order; thread-safe.
 */
trait KeyHash {
  def apply(bytes: Array[Byte], offset: Int, length: Int): Int

  /** Families whose rows are kept in key order. */
  def ordered: Set[Int]
}

object KeyHash {
  private val crcs = ThreadLocal.withInitial[CRC32](() => new CRC32)

  /** The hash of all rows with these stored bucketing bytes. */
  def ofPrefix(prefix: Array[Byte], length: Int): Int =
    Bucketing.hash(crcs.get, FamilyKind.Plain, prefix, 0, length)

  def of(families: Seq[Family]): KeyHash = {
    val kinds = families.map(f => f.id -> f.kind).toMap
    val uniform = kinds.values.forall(_ == FamilyKind.Plain)
    new KeyHash {
      override val ordered: Set[Int] = families.filter(_.kind.ordered).map(_.id).toSet

      override def apply(bytes: Array[Byte], offset: Int, length: Int): Int = {
        val kind =
          if (uniform) FamilyKind.Plain
          else kinds.getOrElse(StoredKey.familyOf(bytes, offset), FamilyKind.Plain)
        Bucketing.hash(crcs.get, kind, bytes, offset, length)
      }
    }
  }
}

/** The bytes of a stored key: the id of its family, and the encoded key. */
object StoredKey {
  def familyOf(bytes: Array[Byte], keyOffset: Int): Int =
    ((bytes(keyOffset) & 0xff) << 8) | (bytes(keyOffset + 1) & 0xff)
}
