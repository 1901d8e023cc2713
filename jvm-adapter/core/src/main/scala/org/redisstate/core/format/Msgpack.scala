package org.redisstate.core.format

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.errors.FormatException

/** Writes the few msgpack types of the format, always in their shortest encoding. */
final class MsgpackWriter(initialBytes: Int) {
  private var bytes = new Array[Byte](math.max(16, initialBytes))
  private var at = 0

  def length: Int = at
  def array: Array[Byte] = bytes
  def toBytes: Array[Byte] = java.util.Arrays.copyOf(bytes, at)
  def reset(): Unit = at = 0

  def putNil(): Unit = put(0xc0)
  def putBool(value: Boolean): Unit = put(if (value) 0xc3 else 0xc2)

  def putUint(value: Int): Unit =
    if (value < 0x80) put(value)
    else sized(value, 0xcc, 0xcd, 0xce)

  /** A number that may be above 2^31. */
  def putUlong(value: Long): Unit =
    if (value <= Int.MaxValue) putUint(value.toInt)
    else if (value <= MsgpackWriter.Uint32Max) { put(0xce); int(value.toInt) }
    else {
      put(0xcf)
      int((value >>> 32).toInt)
      int(value.toInt)
    }

  def putArray(size: Int): Unit =
    if (size < 16) put(0x90 | size)
    else if (size < 0x10000) { put(0xdc); short(size) }
    else { put(0xdd); int(size) }

  def putMap(size: Int): Unit = put(0x80 | size)

  def putString(text: String): Unit = {
    val utf8 = text.getBytes(UTF_8)
    if (utf8.length < 32) put(0xa0 | utf8.length) else sized(utf8.length, 0xd9, 0xda, 0xdb)
    raw(utf8, 0, utf8.length)
  }

  def putBin(source: Array[Byte], offset: Int, size: Int): Unit = {
    sized(size, 0xc4, 0xc5, 0xc6)
    raw(source, offset, size)
  }

  /** Extension 1: elements appended to a list. */
  def putAppended(source: Array[Byte], offset: Int, size: Int): Unit = {
    if (size > 0 && size <= 16 && Integer.bitCount(size) == 1) {
      put(0xd4 + Integer.numberOfTrailingZeros(size))
    } else sized(size, 0xc7, 0xc8, 0xc9)
    put(1)
    raw(source, offset, size)
  }

  def raw(source: Array[Byte], offset: Int, size: Int): Unit = {
    ensure(size)
    System.arraycopy(source, offset, bytes, at, size)
    at += size
  }

  private def sized(size: Int, code8: Int, code16: Int, code32: Int): Unit =
    if (size < 0x100) { put(code8); put(size) }
    else if (size < 0x10000) { put(code16); short(size) }
    else { put(code32); int(size) }

  private def put(value: Int): Unit = {
    ensure(1)
    bytes(at) = value.toByte
    at += 1
  }

  private def short(value: Int): Unit = { put(value >>> 8); put(value) }

  private def int(value: Int): Unit = { short(value >>> 16); short(value) }

  private def ensure(more: Int): Unit =
    if (at.toLong + more > bytes.length) {
      val wanted = math.max(at.toLong + more, bytes.length * 2L)
      bytes = java.util.Arrays.copyOf(bytes, math.min(wanted, MsgpackWriter.BytesMax).toInt)
    }
}

object MsgpackWriter {
  private val BytesMax = (1L << 31) - 64
  private val Uint32Max = 0xffffffffL
}

/** Reads what [[MsgpackWriter]] writes; every length is checked against the bytes at hand. */
final class MsgpackReader(bytes: Array[Byte], private var at: Int, end: Int) {
  def this(bytes: Array[Byte]) = this(bytes, 0, bytes.length)

  /** Start of the next value. */
  def position: Int = at
  def atEnd: Boolean = at == end

  def arraySize(): Int = {
    val code = u8()
    val size =
      if ((code & 0xf0) == 0x90) code & 0x0f
      else if (code == 0xdc) u16()
      else if (code == 0xdd) u32()
      else bad("an array")
    if (size > end - at) bad("an array that fits")
    size
  }

  def mapSize(): Int = {
    val code = u8()
    if ((code & 0xf0) == 0x80) code & 0x0f else bad("a small map")
  }

  def uint(): Int = {
    val code = u8()
    if (code < 0x80) code
    else if (code == 0xcc) u8()
    else if (code == 0xcd) u16()
    else if (code == 0xce) u32()
    else bad("a number")
  }

  /** A number below 2^63. */
  def ulong(): Long = peek() match {
    case 0xce =>
      at += 1
      unsigned32()
    case 0xcf =>
      at += 1
      val value = (unsigned32() << 32) | unsigned32()
      if (value < 0) bad("a number below 2^63") else value
    case _ => uint()
  }

  def bool(): Boolean = u8() match {
    case 0xc3 => true
    case 0xc2 => false
    case _ => bad("a boolean")
  }

  def string(): String = {
    val code = u8()
    val size =
      if ((code & 0xe0) == 0xa0) code & 0x1f
      else if (code == 0xd9) u8()
      else if (code == 0xda) u16()
      else if (code == 0xdb) u32()
      else bad("a string")
    val from = skip(size)
    new String(bytes, from, size, UTF_8)
  }

  /**
   * Reads a `bin` header and skips its content; the length, the content starting at `position -
   * length`.
   */
  def skipBin(): Int = {
    val size = u8() match {
      case 0xc4 => u8()
      case 0xc5 => u16()
      case 0xc6 => u32()
      case _ => bad("a byte string")
    }
    skip(size)
    size
  }

  /** Reads the header of an extension 1 and skips its content, as [[skipBin]] does. */
  def skipAppended(): Int = {
    val size = u8() match {
      case 0xc7 => u8()
      case 0xc8 => u16()
      case 0xc9 => u32()
      case code if code >= 0xd4 && code <= 0xd8 => 1 << (code - 0xd4)
      case _ => bad("a value")
    }
    if (u8() != 1) bad("appended values")
    skip(size)
    size
  }

  def binOrNil(): Array[Byte] =
    if (peek() == 0xc0) { at += 1; null }
    else bin()

  def bin(): Array[Byte] = {
    val size = skipBin()
    java.util.Arrays.copyOfRange(bytes, at - size, at)
  }

  def peek(): Int = if (at < end) bytes(at) & 0xff else bad("more bytes")

  def skipNil(): Unit = if (u8() != 0xc0) bad("nil")

  private def skip(size: Int): Int = {
    if (size < 0 || size > end - at) bad("content that fits")
    val from = at
    at += size
    from
  }

  private def u8(): Int = {
    if (at >= end) bad("more bytes")
    val value = bytes(at) & 0xff
    at += 1
    value
  }

  private def u16(): Int = (u8() << 8) | u8()

  private def u32(): Int = {
    val value = (u16() << 16) | u16()
    if (value < 0) bad("a length below 2 GiB")
    value
  }

  private def unsigned32(): Long = (u16().toLong << 16) | u16()

  private def bad(wanted: String): Nothing =
    throw new FormatException(s"the payload of a block holds something else instead of $wanted")
}
