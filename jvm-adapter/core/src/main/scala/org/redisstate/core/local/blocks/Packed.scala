package org.redisstate.core.local.blocks

import org.redisstate.core.errors.InternalException
import org.redisstate.core.format.{Compression, RowBlock}

/** A block of rows, compressed. */
private[local] final class Packed private (
    bytes: Array[Byte],
    length: Int,
    val rows: Int,
    val rowBytes: Long) {
  def memoryBytes: Long = bytes.length + Packed.OverheadBytes

  def unpack(): RowBlock = {
    val payload = new Array[Byte](length)
    if (!Compression.decompress(bytes, 0, bytes.length, payload)) {
      throw new InternalException("a block of rows in memory does not decompress.")
    }
    RowBlock.parse(payload)
  }
}

private[local] object Packed {
  private val OverheadBytes = 56L

  def of(rows: RowBlock): Packed =
    new Packed(
      Compression.compress(rows.bytes, rows.bytes.length, 0),
      rows.bytes.length,
      rows.count,
      rows.memoryBytes)

  /** Bytes of a block that is decoded, compressed or missing (null). */
  def sizeOf(held: AnyRef): Long = held match {
    case rows: RowBlock => if (rows eq RowBlock.Empty) 0L else rows.memoryBytes
    case packed: Packed => packed.memoryBytes
    case _ => 0L
  }
}
