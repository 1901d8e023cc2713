package org.apache.spark.sql.redisstate.bench

import java.nio.file.{Files, Path}
import java.util.UUID

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.Encoders
import org.apache.spark.sql.catalyst.encoders.{encoderFor, ExpressionEncoder}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statefulprocessor.ImplicitGroupingKeyTracker
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.TimerStateImpl
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.TimeMode

/** Times of one batch, and the timers that fired in it. */
private[bench] final case class TimerBatch(
    openNs: Long,
    scanNs: Long,
    batchNs: Long,
    commitNs: Long,
    fired: Seq[(String, Long)])

/**
 * One partition of `transformWithState` on one provider, reduced to its timers: Spark's own class
 * keeps them, in a family sorted by key and one sorted by time. One timer expires each millisecond;
 * one that fired is set again after all others.
 */
private[bench] final class TimerLane(
    val name: String,
    providerClass: String,
    conf: Map[String, String],
    folder: Path,
    timers: Int) {
  private val Stride = 618_033_989L
  private val checkpoint = Files.createDirectories(folder.resolve(name).resolve("state"))
  private val runId = UUID.randomUUID().toString
  private val encoder = encoderFor(Encoders.STRING).asInstanceOf[ExpressionEncoder[Any]]
  private var provider = make()
  private var version = 0L
  private var nowMs = 0L

  private def make(): StateStoreProvider = {
    val sqlConf = new SQLConf
    conf.foreach { case (k, v) => sqlConf.setConfString(k, v) }
    val hadoopConf = new Configuration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, runId)
    val made = Class.forName(providerClass).getConstructor().newInstance()
      .asInstanceOf[StateStoreProvider]
    val schema = BenchRows.KeySchema
    made.init(
      StateStoreId(checkpoint.toString, 0L, 0),
      schema,
      BenchRows.ValueSchema,
      NoPrefixKeyStateEncoderSpec(schema),
      useColumnFamilies = true,
      new StateStoreConf(sqlConf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      stateSchemaProvider = None
    )
    made
  }

  private def timersOf(store: StateStore): TimerStateImpl =
    new TimerStateImpl(store, TimeMode.EventTime(), encoder)

  private def of[A](key: String)(body: => A): A = {
    ImplicitGroupingKeyTracker.setImplicitKey(key)
    try body
    finally ImplicitGroupingKeyTracker.removeImplicitKey()
  }

  def fill(): Unit = {
    val store = provider.getStore(version)
    val state = timersOf(store)
    (0 until timers).foreach { number =>
      of(f"key-$number%08d")(state.registerTimer(1 + number * Stride % timers))
    }
    store.commit()
    version += 1
  }

  /** Fires `count` timers and sets them again. */
  def batch(count: Int): TimerBatch = {
    nowMs += count
    val began = System.nanoTime()
    val store = provider.getStore(version)
    val opened = System.nanoTime()
    val state = timersOf(store)
    val scanning = System.nanoTime()
    val fired = expired(state)
    val scanned = System.nanoTime()
    fired.foreach { case (key, at) =>
      of(key) {
        state.deleteTimer(at)
        state.registerTimer(at + timers)
      }
    }
    val changed = System.nanoTime()
    store.commit()
    val ended = System.nanoTime()
    store.metrics
    version += 1
    TimerBatch(opened - began, scanned - scanning, ended - began, ended - changed, fired)
  }

  private def expired(state: TimerStateImpl): Seq[(String, Long)] =
    state.getExpiredTimers(nowMs).map { case (key, at) => (key.toString, at) }.toVector

  def maintain(): Unit = provider.doMaintenance()

  /** A new executor: opens the version, and finds the first `count` timers; nanoseconds. */
  def reload(count: Int): (Long, Seq[(String, Long)]) = {
    close()
    provider = make()
    val began = System.nanoTime()
    val store = provider.getStore(version)
    val state = timersOf(store)
    val first = state.getExpiredTimers(nowMs + count).map { case (k, at) => (k.toString, at) }
      .toVector
    val took = System.nanoTime() - began
    store.abort()
    (took, first)
  }

  def close(): Unit = provider.close()
}
