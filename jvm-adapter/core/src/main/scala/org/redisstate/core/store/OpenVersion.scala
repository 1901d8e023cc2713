package org.redisstate.core.store

import org.redisstate.core.format.Family
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{RowIterator, Slice}

/**
 * A version, open for reading. Keys are stored keys: family id and encoded key, in a buffer of the caller.
 *
 * @param held whether the run holds the partition already
 */
final class OpenVersion private[store] (
    private[store] val store: PartitionStore,
    private[store] val local: LocalVersion,
    private[store] val held: Boolean) {
  def pin: Pin = local.pin
  def numKeys: Long = local.live
  def families: Seq[Family] = store.families(local)

  def get(key: Array[Byte], length: Int, out: Slice): Boolean = {
    val hash = local.hashOf(key, 0, length)
    local.read(_.get(hash, key, 0, length, out))
  }

  def iterator(family: Int): RowIterator = local.read(_.iterator(family, local.hashOf))

  /** @param prefix stored bucketing bytes: family id, length of the prefix, prefix */
  def prefixScan(prefix: Array[Byte], length: Int): RowIterator = {
    val hash = local.hashOf(prefix, 0, length)
    local.read(_.prefixScan(hash, prefix, length))
  }

  def write(): WriteSession = new WriteSession(this)
}
