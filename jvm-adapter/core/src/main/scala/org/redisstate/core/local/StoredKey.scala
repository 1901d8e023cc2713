package org.redisstate.core.local

/** The bytes of a stored key: the id of its family, and the encoded key. */
object StoredKey {
  def familyOf(bytes: Array[Byte], keyOffset: Int): Int =
    ((bytes(keyOffset) & 0xff) << 8) | (bytes(keyOffset + 1) & 0xff)
}
