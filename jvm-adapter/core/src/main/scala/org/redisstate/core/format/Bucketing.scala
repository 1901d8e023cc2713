package org.redisstate.core.format

import java.util.zip.CRC32

import org.redisstate.core.errors.FormatException

/** Assigns rows to buckets (docs/format.md, section 4.3). */
object Bucketing {

  /** Bytes of a stored key that name its family. */
  private[core] val FamilyBytes = 2
  private val TimestampBytes = 8
  private val HashedKinds =
    Seq(FamilyKind.Plain, FamilyKind.Prefix, FamilyKind.TimestampPostfix)
  private[core] val RowsPerBucket = 128L
  private[core] val BytesPerBucket = 16L << 10

  /** CRC-32 of the family id and the bucketing bytes of a stored key. */
  def hash(crc: CRC32, kind: FamilyKind, key: Array[Byte], offset: Int, length: Int): Int = {
    crc.reset()
    crc.update(key, offset, bucketedLength(kind, key, offset, length))
    crc.getValue.toInt
  }

  /** Number of leading bytes of a stored key, family id included, that decide its bucket. */
  def bucketedLength(kind: FamilyKind, key: Array[Byte], offset: Int, length: Int): Int = {
    val used = usedOf(kind, key, offset, length)
    if (used < 0) {
      throw new FormatException(
        s"a key of ${length - FamilyBytes} bytes is too short for the encoder ${kind.name}")
    }
    FamilyBytes + used
  }

  /** Bytes of the encoded key that decide its bucket, or a negative number if it is too short. */
  private def usedOf(kind: FamilyKind, key: Array[Byte], offset: Int, length: Int): Int = {
    val encoded = length - FamilyBytes
    kind match {
      case FamilyKind.Prefix =>
        val prefix = if (encoded >= 4) littleEndian(key, offset + FamilyBytes) else -1
        if (prefix < 0 || prefix > encoded - 4) -1 else 4 + prefix
      case FamilyKind.TimestampPostfix => encoded - TimestampBytes
      case _ => encoded
    }
  }

  /**
   * Gives each hash that a row of a bucket may have, whatever the kind of its family is.
   *
   * @param use told of the hash of every kind that leads to the bucket; some may be equal
   */
  private[core] def hashesIn(
      bucket: Int,
      buckets: Int,
      crc: CRC32,
      key: Array[Byte],
      offset: Int,
      length: Int)(use: Int => Unit): Unit =
    HashedKinds.foreach { kind =>
      val used = usedOf(kind, key, offset, length)
      if (used >= 0) {
        crc.reset()
        crc.update(key, offset, FamilyBytes + used)
        val hash = crc.getValue.toInt
        if (this.bucket(hash, buckets) == bucket) use(hash)
      }
    }

  def bucket(hash: Int, buckets: Int): Int = hash & (buckets - 1)

  /** The smallest power of two with at most 128 rows and 16 KiB a bucket on average. */
  def bucketsFor(rows: Long, rawBytes: Long): Int = {
    val wanted = math.max(
      (rows + RowsPerBucket - 1) / RowsPerBucket,
      (rawBytes + BytesPerBucket - 1) / BytesPerBucket)
    var buckets = 1
    while (buckets < wanted && buckets < Entry.BucketsMax) buckets <<= 1
    buckets
  }

  private def littleEndian(bytes: Array[Byte], at: Int): Int =
    (bytes(at) & 0xff) | ((bytes(at + 1) & 0xff) << 8) | ((bytes(at + 2) & 0xff) << 16) |
      ((bytes(at + 3) & 0xff) << 24)
}
