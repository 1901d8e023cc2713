package org.apache.spark.sql.redisstate.move

import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.sql.redisstate.move.checkpoint.QueryCheckpoint
import org.apache.spark.sql.redisstate.move.engine.{MoveWatcher, MovedStore, StateDigest, StoreSpec}

/** Result of a move, or of a dry run, whose stores have no partitions. */
final case class MoveReport(
    batch: Long,
    from: String,
    to: String,
    withIds: Boolean,
    stores: Seq[MovedStore]) {

  /** JSON for the command line, which prints it. */
  def json: String = compact(render(
    ("batch" -> batch) ~ ("from" -> from) ~ ("to" -> to) ~ ("withIds" -> withIds) ~
      ("stores" -> stores.map { moved =>
        ("operator" -> moved.spec.operator) ~ ("name" -> moved.spec.operatorName) ~
          ("store" -> moved.spec.name) ~ ("partitions" -> moved.numPartitions) ~
          ("families" -> moved.spec.filled.size) ~ ("rows" -> moved.source.rows) ~
          ("bytes" -> moved.source.bytes) ~ ("source" -> moved.source.text) ~
          ("target" -> moved.target.text) ~ ("written" -> moved.partitions.count(_.isNew))
      })))
}

object MoveReport {
  private[redisstate] def apply(
      checkpoint: QueryCheckpoint,
      to: String,
      stores: Seq[MovedStore]): MoveReport =
    MoveReport(checkpoint.batch, checkpoint.provider, to, checkpoint.hasIds, stores)
}

/** Progress of a move in finished partitions; for any thread. */
final class MoveCounters extends MoveWatcher {
  private val expected, done = new AtomicInteger
  private val moved = new AtomicLong

  private[redisstate] def expect(partitions: Int): Unit = expected.addAndGet(partitions)

  def partitionsAll: Int = expected.get
  def partitionsDone: Int = done.get
  def rows: Long = moved.get

  override def partitionDone(spec: StoreSpec, digest: StateDigest): Unit = {
    done.incrementAndGet()
    moved.addAndGet(digest.rows)
    ()
  }
}
