package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/**
 * The value of a multi-value family: its elements one after the other, each a msgpack `bin`
 * (docs/format.md, section 4.2).
 */
object MultiValue {

  /** @throws FormatException when the bytes are not a sequence of elements */
  def check(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    val in = new MsgpackReader(bytes, offset, offset + length)
    while (!in.atEnd) in.skipBin()
  }

  def elements(bytes: Array[Byte], offset: Int, length: Int): Iterator[Array[Byte]] = {
    val in = new MsgpackReader(bytes, offset, offset + length)
    new Iterator[Array[Byte]] {
      override def hasNext: Boolean = !in.atEnd
      override def next(): Array[Byte] = {
        val size = in.skipBin()
        java.util.Arrays.copyOfRange(bytes, in.position - size, in.position)
      }
    }
  }

  def encode(elements: Iterable[Array[Byte]]): Array[Byte] = {
    val out = new MsgpackWriter(64)
    elements.foreach(e => out.putBin(e, 0, e.length))
    out.toBytes
  }

  /** @throws FormatException when a list would be longer than a block may be */
  private[core] def checkedLength(first: Int, second: Int): Int = {
    if (first.toLong + second > Block.RawLengthMax) {
      throw new FormatException(
        s"the values appended to a list exceed ${Block.RawLengthMax} bytes together")
    }
    first + second
  }

  private[core] def join(
      first: Array[Byte],
      firstOffset: Int,
      firstLength: Int,
      second: Array[Byte],
      secondOffset: Int,
      secondLength: Int): Array[Byte] = {
    val joined = new Array[Byte](checkedLength(firstLength, secondLength))
    System.arraycopy(first, firstOffset, joined, 0, firstLength)
    System.arraycopy(second, secondOffset, joined, firstLength, secondLength)
    joined
  }
}
