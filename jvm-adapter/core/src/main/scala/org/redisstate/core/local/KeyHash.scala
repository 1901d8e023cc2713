package org.redisstate.core.local

import java.util.zip.CRC32

import org.redisstate.core.format.{Bucketing, Family, FamilyKind}

/** The bucketing hash of a stored key; thread-safe. */
trait KeyHash {
  def apply(bytes: Array[Byte], offset: Int, length: Int): Int
}

object KeyHash {
  private val crcs = ThreadLocal.withInitial[CRC32](() => new CRC32)

  def of(families: Seq[Family]): KeyHash = {
    val kinds = families.map(f => f.id -> f.kind).toMap
    val uniform = kinds.values.forall(_ == FamilyKind.Plain)
    (bytes, offset, length) => {
      val kind =
        if (uniform) FamilyKind.Plain
        else kinds.getOrElse(Layer.familyOf(bytes, offset), FamilyKind.Plain)
      Bucketing.hash(crcs.get, kind, bytes, offset, length)
    }
  }
}
