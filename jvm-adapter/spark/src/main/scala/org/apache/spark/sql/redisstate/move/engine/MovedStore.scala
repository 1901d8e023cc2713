package org.apache.spark.sql.redisstate.move.engine

/**
 * A written partition of a store.
 *
 * @param digest of what can be read there
 * @param uid Spark's unique id of it, in checkpoint format 2
 * @param isNew whether it was written now, and not by an earlier, interrupted move
 */
final case class WrittenPartition(
    partition: Int,
    digest: StateDigest,
    uid: Option[String],
    isNew: Boolean)

/**
 * A moved store.
 *
 * @param source what was read
 * @param partitions by number
 */
final case class MovedStore(
    spec: StoreSpec,
    source: StateDigest,
    partitions: Seq[WrittenPartition]) {

  /** Number of partitions after the move; for a dry run, those that were read. */
  def numPartitions: Int = if (partitions.isEmpty) spec.partitions else partitions.size
  def target: StateDigest = partitions.map(_.digest).foldLeft(StateDigest.Empty)(_ + _)
}
