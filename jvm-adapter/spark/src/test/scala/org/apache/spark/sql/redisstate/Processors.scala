package org.apache.spark.sql.redisstate

import java.sql.Timestamp
import java.time.Duration

import org.apache.spark.sql.{Encoder, Encoders}
import org.apache.spark.sql.streaming._

/** Processors of `transformWithState` in Scala; what they give out is all that they found. */
private[redisstate] object Processors {
  type In = (String, Long, Timestamp)
  type Out = (String, String, Timestamp)

  val in: Encoder[In] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong, Encoders.TIMESTAMP)
  val out: Encoder[Out] = Encoders.tuple(Encoders.STRING, Encoders.STRING, Encoders.TIMESTAMP)
  val start: Encoder[(String, Long)] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong)

  private val long: Encoder[Long] = Encoders.scalaLong

  /** The state of a key, however it is kept. */
  private final class States(handle: StatefulProcessorHandle, ttl: TTLConfig) {
    val total: ValueState[Long] = handle.getValueState("total", long, ttl)
    val seen: ListState[Long] = handle.getListState("seen", long, ttl)
    val signs: MapState[String, Long] = handle.getMapState("signs", Encoders.STRING, long, ttl)

    def add(values: Seq[Long]): Unit = {
      total.update((if (total.exists()) total.get() else 0L) + values.sum)
      if (values.size > 4) seen.put(values.take(2).toArray)
      seen.appendList(values.toArray)
      values.foreach { value =>
        val sign = if (value < 0) "minus" else "plus"
        val known = if (signs.containsKey(sign)) signs.getValue(sign) else 0L
        signs.updateValue(sign, known + 1)
      }
    }

    override def toString: String =
      s"${Option.when(total.exists())(total.get())} ${seen.get().toList} ${signs.iterator().toList.sorted}"
  }

  private def sorted(rows: Iterator[In]): Seq[In] = rows.toSeq.sortBy(r => (r._3.getTime, r._2))

  /** All kinds of state, before and after the rows of a batch. */
  final class Plain extends StatefulProcessor[String, In, Out] {
    @transient private var states: States = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
      states = new States(getHandle, TTLConfig.NONE)

    override def handleInputRows(
        key: String,
        inputRows: Iterator[In],
        timerValues: TimerValues): Iterator[Out] = {
      val rows = sorted(inputRows)
      val before = states.toString
      states.add(rows.map(_._2))
      Iterator((key, s"before $before after $states", rows.last._3))
    }
  }

  /** All kinds of state, and a timer two minutes after the last event of a key. */
  final class WithTimers extends StatefulProcessor[String, In, Out] {
    @transient private var states: States = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
      states = new States(getHandle, TTLConfig.NONE)

    override def handleInputRows(
        key: String,
        inputRows: Iterator[In],
        timerValues: TimerValues): Iterator[Out] = {
      val rows = sorted(inputRows)
      states.add(rows.map(_._2))
      getHandle.listTimers().toList.foreach(getHandle.deleteTimer)
      getHandle.registerTimer(rows.last._3.getTime + 120000)
      Iterator((key, s"input $states", rows.last._3))
    }

    override def handleExpiredTimer(
        key: String,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo): Iterator[Out] = {
      val at = expiredTimerInfo.getExpiryTimeInMs()
      val found = s"timer $at $states"
      states.seen.clear()
      states.signs.removeKey("minus")
      if (states.total.get() < 0) states.total.clear()
      // Later than the watermark, as an operator behind this one wants it.
      Iterator((key, found, new Timestamp(timerValues.getCurrentWatermarkInMs() + 1000)))
    }
  }

  /** State that has expired by the next batch, state that has not, and a timer. */
  final class Ageing extends StatefulProcessor[String, In, Out] {
    @transient private var kept: States = _
    @transient private var short: ValueState[Long] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
      kept = new States(getHandle, TTLConfig(Duration.ofHours(1)))
      short = getHandle.getValueState("short", long, TTLConfig(Duration.ofMillis(1)))
    }

    override def handleInputRows(
        key: String,
        inputRows: Iterator[In],
        timerValues: TimerValues): Iterator[Out] = {
      val rows = sorted(inputRows)
      val found = s"input ${short.exists()} $kept"
      kept.add(rows.map(_._2))
      short.update(rows.size.toLong)
      getHandle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
      Iterator((key, found, rows.last._3))
    }

    override def handleExpiredTimer(
        key: String,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo): Iterator[Out] =
      Iterator((key, s"timer $kept", new Timestamp(0)))
  }

  /** Sums that begin with an initial state. */
  final class Started extends StatefulProcessorWithInitialState[String, In, Out, (String, Long)] {
    @transient private var total: ValueState[Long] = _

    override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
      total = getHandle.getValueState("total", long, TTLConfig.NONE)

    override def handleInitialState(
        key: String,
        initialState: (String, Long),
        timerValues: TimerValues): Unit = total.update(initialState._2)

    override def handleInputRows(
        key: String,
        inputRows: Iterator[In],
        timerValues: TimerValues): Iterator[Out] = {
      val rows = sorted(inputRows)
      total.update((if (total.exists()) total.get() else 0L) + rows.map(_._2).sum)
      Iterator((key, s"total ${total.get()}", rows.last._3))
    }
  }
}
