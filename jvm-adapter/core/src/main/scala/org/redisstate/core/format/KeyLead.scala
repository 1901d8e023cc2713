package org.redisstate.core.format

import java.nio.ByteBuffer

/** First bytes of a key as a number, by which keys are compared before their whole content is read. */
private[core] object KeyLead {

  /** Bytes in a number. */
  final val Bytes = 8

  /**
   * Returns eight bytes as an unsigned number, made signed; a key that ends earlier is filled up
   * with zeros.
   *
   * @param at place of the first byte
   * @param left bytes of the key from there on
   */
  def of(bytes: ByteBuffer, at: Int, left: Int): Long = {
    var number = 0L
    if (left >= Bytes) number = bytes.getLong(at)
    else {
      var i = 0
      while (i < left) {
        number |= (bytes.get(at + i) & 0xffL) << (56 - 8 * i)
        i += 1
      }
    }
    number ^ Long.MinValue
  }
}
