package org.apache.spark.sql.redisstate.move.engine

import org.apache.hadoop.conf.Configuration

/**
 * Writes all rows of one partition of a store as one version, which becomes readable as a whole
 * with `commit`. For one thread.
 *
 * @param uid that the version is to have; None for a new one, and where the provider takes none
 * @param timeS of the version, if its rows expire; only this provider's rows do
 */
private[redisstate] final class StoreWriter(
    spec: StoreSpec,
    side: StateSide,
    partition: Int,
    uid: Option[String],
    timeS: Option[Long],
    hadoopConf: Configuration)
    extends AutoCloseable {
  private val sink = TargetSink.open(spec, side, partition, uid, timeS, hadoopConf)
  private val sum = new DigestSum(spec.families.map(_.name))
  private val names = spec.families.map(_.name).toArray

  def put(entry: StateEntry): Unit = {
    sum.add(entry)
    val family = names(entry.family)
    if (entry.list == null) sink.put(entry.key, entry.value, family, entry.expiryS)
    else if (entry.list.nonEmpty) sink.putList(entry.key, entry.list, family)
  }

  /** Digest of the rows that were put. */
  def digest: StateDigest = sum.result

  /** @return Spark's unique id of what was written, in checkpoint format 2 */
  def commit(): Option[String] = sink.commit()

  /** Drops uncommitted rows. */
  override def close(): Unit = sink.close()
}
