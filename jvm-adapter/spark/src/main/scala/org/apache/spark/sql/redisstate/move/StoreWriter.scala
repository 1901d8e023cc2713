package org.apache.spark.sql.redisstate.move

import org.apache.hadoop.conf.Configuration

/**
 * Writes all rows of one partition of a store as one version, which becomes readable as a whole
 * with `commit`. For one thread.
 */
private[redisstate] final class StoreWriter(
    spec: StoreSpec,
    side: StateSide,
    partition: Int,
    hadoopConf: Configuration)
    extends AutoCloseable {
  private val sink = TargetSink.open(spec, side, partition, hadoopConf)
  private val sum = new DigestSum(spec.families.map(_.name))
  private val names = spec.families.map(_.name).toArray
  private val store =
    try {
      if (spec.usesFamilies) StoreReader.createFamilies(spec, sink.store)
      sink.store
    } catch {
      case e: Throwable =>
        sink.close()
        throw e
    }

  def put(entry: StateEntry): Unit = {
    sum.add(entry)
    val family = names(entry.family)
    if (entry.list == null) store.put(entry.key, entry.value, family)
    else if (entry.list.nonEmpty) {
      store.put(entry.key, entry.list.head, family)
      var i = 1
      while (i < entry.list.length) {
        store.merge(entry.key, entry.list(i), family)
        i += 1
      }
    }
  }

  /** Of what was put. */
  def digest: StateDigest = sum.result

  /** @return Spark's unique id of what was written, in checkpoint format 2 */
  def commit(): Option[String] = sink.commit()

  /** What was not committed is given up. */
  override def close(): Unit = sink.close()
}
