package org.apache.spark.sql.redisstate.checkpoint

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.DefaultFormats

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.errors.UnavailableException

/**
 * Times of batches, as the offset log of a checkpoint has them: the same for all stores and all
 * attempts of a batch. An executor reads an entry once. Thread-safe.
 */
private[redisstate] object BatchTimes {
  private val KeptMax = 256
  private val MillisPerSecond = 1000L
  private val SecondsMax = 0xfffffffeL

  private final case class Batch(stateRoot: String, runId: String, number: Long)

  @GuardedBy("this") private val known = new JLinkedHashMap[Batch, Long](16, 0.75f, true) {
    override protected def removeEldestEntry(eldest: JMap.Entry[Batch, Long]): Boolean =
      size > KeptMax
  }

  /**
   * Returns the time of a batch in seconds since 1970.
   *
   * @param stateRoot the checkpoint's state folder, as Spark names it in a store's id
   * @param runId of the query, whose next run may plan the batch anew
   * @throws UnavailableException if the entry cannot be read
   */
  def of(stateRoot: String, runId: String, number: Long, hadoopConf: Configuration): Long = {
    val batch = Batch(stateRoot, runId, number)
    synchronized(Option(known.get(batch))).getOrElse {
      val found = read(batch, hadoopConf)
      synchronized(known.put(batch, found))
      found
    }
  }

  private def read(batch: Batch, hadoopConf: Configuration): Long = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    try {
      val checkpoint = new Path(batch.stateRoot).getParent
      val entry = QueryLogs.metadata(checkpoint, QueryLogs.Offsets, batch.number, hadoopConf)
      val timeMs = (entry \ "batchTimestampMs").extract[Long]
      math.max(1, math.min(timeMs / MillisPerSecond, SecondsMax))
    } catch {
      case NonFatal(e) => throw new UnavailableException(
          s"read the time of batch ${batch.number} from the offset log beside ${batch.stateRoot}: ${e.getMessage}. " +
            "The rows of its join expire by this time. Spark runs the task again.",
          e
        )
    }
  }
}
