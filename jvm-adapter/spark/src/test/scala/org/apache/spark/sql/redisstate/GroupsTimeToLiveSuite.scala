package org.apache.spark.sql.redisstate

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.api.java.function.FlatMapGroupsWithStateFunction
import org.apache.spark.sql.{DataFrame, Dataset, Encoder, Encoders, Row}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode, Trigger}

import org.redisstate.core.TestConnection
import org.redisstate.core.backend.Command
import org.redisstate.core.format.Entry

/** `flatMapGroupsWithState` whose state expires, in Scala and Java, against a plain computation. */
class GroupsTimeToLiveSuite extends AnyFunSuite with SessionOnServer {
  import GroupsTimeToLiveSuite._

  private lazy val raw = TestConnection.backend(server.url)

  override protected def settings: Map[String, String] = Map(
    "spark.sql.streaming.noDataMicroBatches.enabled" -> "false",
    "spark.sql.streaming.stateStore.providerClass" -> classOf[RedisStateStoreProvider].getName,
    RedisStateConf.Prefix + "stateTtl" -> s"${TtlS}s"
  )

  override def afterAll(): Unit = {
    raw.close()
    super.afterAll()
  }

  /** Makes the newest version of each partition later, and thereby those on top of it. */
  private def pass(seconds: Long): Unit =
    texts("KEYS", "*:m").foreach { meta =>
      val manifest = texts("HGETALL", meta).grouped(2).map(pair => pair.head -> pair.last).toMap
      manifest.filter(_._1.matches(s"[ds]:${manifest("l")}:.*")).foreach { case (field, text) =>
        val entry = Entry.parse(text)
        ask("HSET", meta, field, entry.copy(time = entry.time + seconds).text)
      }
    }

  private def texts(words: String*): Seq[String] =
    ask(words: _*).asInstanceOf[Seq[Array[Byte]]].map(new String(_, UTF_8))

  private def ask(words: String*): AnyRef =
    raw.call("a test", Seq(Command(words.head, words.tail: _*))).head

  private def outputs(life: Seq[(Long, String)])(
      build: Dataset[String] => DataFrame): Seq[Seq[String]] = {
    ask("FLUSHDB")
    val folder = Files.createTempDirectory("events")
    val checkpoint = Files.createTempDirectory("checkpoint")
    life.zipWithIndex.map { case ((seconds, keys), number) =>
      if (seconds > 0) pass(seconds)
      add(folder, number, keys.map(_.toString))
      val found = mutable.ArrayBuffer.empty[String]
      val rows = spark.readStream.option("maxFilesPerTrigger", 1).textFile(folder.toString)
      build(rows).writeStream
        .outputMode("update")
        .option("checkpointLocation", checkpoint.toString)
        .foreachBatch { (batch: Dataset[Row], _: Long) =>
          found ++= batch.collect().map(_.toString)
          ()
        }
        .trigger(Trigger.AvailableNow())
        .start()
        .awaitTermination()
      found.sorted.toSeq
    }
  }

  test("Scala: a group that expired begins anew") {
    val found = outputs(Life)(rows =>
      rows.groupByKey(identity)(text)
        .flatMapGroupsWithState(OutputMode.Update, GroupStateTimeout.NoTimeout)(step)(number, pair)
        .toDF())
    assert(found == expected)
  }

  test("Java: a group that expired begins anew") {
    val function: FlatMapGroupsWithStateFunction[String, String, Long, (String, Long)] =
      (key, events, state) => step(key, events.asScala, state).asJava
    val found = outputs(Life)(rows =>
      rows.groupByKey(identity)(text).flatMapGroupsWithState(
        function,
        OutputMode.Update,
        number,
        pair,
        GroupStateTimeout.NoTimeout).toDF())
    assert(found == expected)
  }

  test("the timeout of a group that expired does not fire") {
    val life = Seq(0L -> "ab", 600L -> "a", 1100L -> "c", 100L -> "d")
    val found = outputs(life)(rows =>
      rows.groupByKey(identity)(text)
        .flatMapGroupsWithState(OutputMode.Update, GroupStateTimeout.ProcessingTimeTimeout)(
          stepUntil)(number, pair)
        .toDF())
    // `b` and `c` are not there in the batch after theirs, and have not expired; `a` has.
    assert(found == Seq(
      Seq("[a,1]", "[b,1]"),
      Seq("[a,2]", "[b,-1]"),
      Seq("[c,1]"),
      Seq("[c,-1]", "[d,1]")))
  }
}

private object GroupsTimeToLiveSuite {
  private val TtlS = 1000

  /** Seconds that pass before each batch, and the keys of its rows. */
  private val Life = Seq(
    0L -> "abc",
    600L -> "abd",
    600L -> "ae",
    100L -> "bcd",
    910L -> "aab",
    1100L -> "abcde",
    300L -> "a")

  private val text: Encoder[String] = Encoders.STRING
  private val number: Encoder[Long] = Encoders.scalaLong
  private val pair: Encoder[(String, Long)] = Encoders.tuple(Encoders.STRING, Encoders.scalaLong)

  /** Counts the events of a key. */
  private def step(
      key: String,
      events: Iterator[String],
      state: GroupState[Long]): Iterator[(String, Long)] = {
    val total = state.getOption.getOrElse(0L) + events.size
    state.update(total)
    Iterator(key -> total)
  }

  /** Counts the events of a key, until a batch has none. */
  private def stepUntil(
      key: String,
      events: Iterator[String],
      state: GroupState[Long]): Iterator[(String, Long)] =
    if (state.hasTimedOut) {
      state.remove()
      Iterator(key -> -1L)
    } else {
      val counted = step(key, events, state)
      state.setTimeoutDuration(1)
      counted
    }

  /** The plain computation. */
  private def expected: Seq[Seq[String]] = {
    var now = 0L
    val known = mutable.HashMap.empty[String, (Long, Long)]
    Life.map { case (seconds, keys) =>
      now += seconds
      keys.map(_.toString).groupBy(identity).toSeq.map { case (key, events) =>
        val before = known.get(key).filter(_._2 + TtlS > now).fold(0L)(_._1)
        known(key) = (before + events.length, now)
        s"[$key,${before + events.length}]"
      }.sorted
    }
  }
}
