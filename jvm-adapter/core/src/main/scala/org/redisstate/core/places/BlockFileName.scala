package org.redisstate.core.places

import org.redisstate.core.format.Place
import org.redisstate.core.ids.{PartitionId, Pin}

/** Names of block files (docs/format.md, section 17). */
object BlockFileName {

  /** Folder of a checkpoint's block files, in its folder `state`. */
  val Folder: String = "_redis_state_segments"

  /** Returns the folder of a partition's files, below `Folder`. */
  def folderOf(id: PartitionId): String = s"${id.operator}-${id.partition}-${id.storeHash}"

  /** Returns a new name for a file of a copy. */
  def newCopyName(id: PartitionId, first: Long, last: Long): String =
    s"${folderOf(id)}/$first-$last-${Pin.newUid()}.${Place.CopyEnding}"

  /** Returns a new name below `Folder`; its 128 random bits make it unique. */
  def newName(id: PartitionId, first: Long, last: Long): String =
    s"${folderOf(id)}/$first-$last-${Pin.newUid()}.seg"
}
