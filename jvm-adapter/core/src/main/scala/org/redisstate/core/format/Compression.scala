package org.redisstate.core.format

import com.github.luben.zstd.{Zstd, ZstdCompressCtx, ZstdDecompressCtx, ZstdException}

/**
 * zstd at level 1 with one context a thread: a block is so small that making a context would cost
 * more than its use.
 */
private[core] object Compression {
  private val Level = 1
  private val compressors = ThreadLocal.withInitial[Compressor](() => new Compressor)
  private val decompressors =
    ThreadLocal.withInitial[ZstdDecompressCtx](() => new ZstdDecompressCtx)

  private final class Compressor {
    val context: ZstdCompressCtx = new ZstdCompressCtx().setLevel(Level)
    private var bytes = new Array[Byte](ScratchBytes)

    /** Room for the result; kept from call to call unless the request is an unusual one. */
    def scratch(size: Int): Array[Byte] =
      if (size <= bytes.length) bytes
      else {
        val larger = new Array[Byte](size)
        if (size <= ScratchBytesMax) bytes = larger
        larger
      }
  }

  private val ScratchBytes = 64 << 10
  private val ScratchBytesMax = 1 << 20

  /** The compressed bytes behind `head` free bytes. */
  def compress(source: Array[Byte], length: Int, head: Int): Array[Byte] = {
    val compressor = compressors.get
    val scratch = compressor.scratch(Zstd.compressBound(length.toLong).toInt)
    val size = compressor.context.compressByteArray(scratch, 0, scratch.length, source, 0, length)
    val packed = new Array[Byte](head + size)
    System.arraycopy(scratch, 0, packed, head, size)
    packed
  }

  /** Returns whether a frame declares this many bytes, so that they may be allocated. */
  def states(source: Array[Byte], offset: Int, length: Int, raw: Int): Boolean =
    length > 0 && Zstd.getFrameContentSize(source, offset, length) == raw.toLong

  /** Fills `target`; false when the bytes are damaged or of another length. */
  def decompress(source: Array[Byte], offset: Int, length: Int, target: Array[Byte]): Boolean =
    try {
      decompressors.get
        .decompressByteArray(target, 0, target.length, source, offset, length) == target.length
    } catch { case _: ZstdException => false }
}
