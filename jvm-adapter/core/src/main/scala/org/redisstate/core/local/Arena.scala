package org.redisstate.core.local

import java.nio.ByteBuffer

/**
 * Rows one behind the other in a growing byte array. Bytes of keys and values once written are never
 * overwritten, so slices into them stay valid.
 *
 * An entry in the arena: next entry + 1 (int), hash (int), key length (int), value length (int),
 * key, value. The value length is -1 for a removal, and -2 - length where elements are appended to
 * the older value; bit 30 of a length says that the value has room to grow behind it, up to the next
 * power of two.
 */
private[local] abstract class Arena(first: Array[Byte]) {
  import Arena._

  final protected var arena: Array[Byte] = first
  private var ints = ByteBuffer.wrap(arena)

  final def isRemoved(entry: Int): Boolean = int(entry + ValueLengthAt) == Removed
  final def hashOf(entry: Int): Int = int(entry + HashAt)
  final def bytes: Array[Byte] = arena
  final def keyOffset(entry: Int): Int = entry + HeadBytes
  final def keyLength(entry: Int): Int = int(entry + KeyLengthAt)
  final def valueOffset(entry: Int): Int = entry + HeadBytes + keyLength(entry)
  final def valueLength(entry: Int): Int = lengthOf(int(entry + ValueLengthAt))

  /** Returns whether the value only holds elements to append to the older value. */
  final def isAppended(entry: Int): Boolean = int(entry + ValueLengthAt) <= Appended
  final def key(entry: Int, out: Slice): Unit = out.set(arena, keyOffset(entry), keyLength(entry))
  final def value(entry: Int, out: Slice): Unit =
    out.set(arena, valueOffset(entry), valueLength(entry))

  final protected def int(at: Int): Int = ints.getInt(at)
  final protected def setInt(at: Int, value: Int): Unit = {
    ints.putInt(at, value)
    ()
  }

  final protected def resize(bytes: Int): Unit = {
    arena = java.util.Arrays.copyOf(arena, bytes)
    ints = ByteBuffer.wrap(arena)
  }
}

private[local] object Arena {
  final val HashAt = 4
  final val KeyLengthAt = 8
  final val ValueLengthAt = 12
  final val HeadBytes = 16
  final val Removed = -1
  final val Appended = -2
  final val Roomy = 1 << 30

  def unmarked(stored: Int): Int = if (stored <= Appended) Appended - stored else stored

  def lengthOf(stored: Int): Int = math.max(0, unmarked(stored)) & ~Roomy
}
