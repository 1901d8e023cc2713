package org.apache.spark.sql.redisstate.checkpoint

/** Names of the copies of a query's state in its checkpoint (docs/format.md, section 11). */
private[redisstate] object CopyNames {

  /** Folder of all copies, in the checkpoint's state folder. */
  val Folder = "_redis_state_copies"

  /** File of a copy that is complete. */
  val Manifest = "manifest"
}
