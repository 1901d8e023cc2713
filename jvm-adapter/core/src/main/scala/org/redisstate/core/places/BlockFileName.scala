package org.redisstate.core.places

import org.redisstate.core.ids.{PartitionId, Pin}

/** Names of block files (docs/format.md, section 17). */
object BlockFileName {

  /** Folder of a checkpoint's block files, in its folder `state`. */
  val Folder: String = "_redis_state_segments"

  /** Returns a new name below that folder; its 128 random bits are used once. */
  def newName(id: PartitionId, first: Long, last: Long): String =
    s"${id.operator}-${id.partition}-${id.storeHash}/$first-$last-${Pin.newUid()}.seg"
}
