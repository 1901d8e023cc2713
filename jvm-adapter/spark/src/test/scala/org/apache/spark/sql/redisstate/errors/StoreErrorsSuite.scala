package org.apache.spark.sql.redisstate.errors

import java.nio.file.{Files, Path}

import org.apache.hadoop.conf.Configuration
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkException
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.copies.WaysOn
import org.apache.spark.util.Utils

import org.redisstate.core.errors._

/** Error messages end with our text, whatever the kind; Spark's callers find their conditions. */
class StoreErrorsSuite extends AnyFunSuite {
  private val advice = "Look at this, then do that."
  private val absent: Seq[RedisStateException] = Seq(
    new StateLostException(advice),
    new VersionExpiredException(advice),
    new MarkerMissingException(advice),
    new CheckpointMovedException(advice))
  private val others: Seq[RedisStateException] = Seq(
    new ConfigException(advice),
    new FencedException(advice),
    new UnavailableException(advice),
    new FullException(advice),
    new PermissionException(advice),
    new OutcomeUnknownException(advice),
    new NotDurableException(advice),
    new FormatException(advice),
    new LimitException(advice),
    new InternalException(advice)
  )
  private val id = StateStoreId("/data/orders/state", 2L, 7, "left-rows")
  private val shown = "operator 2, partition 7, store left-rows"

  test("each error of a load ends with our advice") {
    (absent ++ others).foreach { ours =>
      val told = StoreErrors.cannotLoad(id, ours)
      assert(told.getMessage == s"The state of $shown was not loaded. [REDIS_${ours.kind}] $advice")
      assert(told.getCause eq ours)
    }
  }

  test("a version that is not there has the condition that Spark's callers look for") {
    val known = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"
    absent.foreach(ours => assert(condition(StoreErrors.cannotLoad(id, ours)) == known))
    others.foreach { ours =>
      val found = condition(StoreErrors.cannotLoad(id, ours))
      assert(found == "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED")
    }
  }

  private def endsWithOurAdvice(
      told: RedisStateException => Throwable,
      attempted: String,
      known: String): Unit =
    (absent ++ others).foreach { ours =>
      val error = told(ours)
      assert(
        error.getMessage == s"The state of $shown $attempted. [REDIS_${ours.kind}] $advice")
      assert(condition(error) == known)
      assert(error.getCause eq ours)
    }

  test("each error of reading and writing rows ends with our advice") {
    val known = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
    endsWithOurAdvice(StoreErrors.cannotUse(id, _), "could not be used", known)
  }

  test("each error of a commit ends with our advice") {
    val known = "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT"
    endsWithOurAdvice(StoreErrors.cannotCommit(id, _), "was not committed", known)
  }

  test("the stack trace of each ends with it, too") {
    val down = new UnavailableException(advice, new RuntimeException("connection refused"))
    Seq(
      StoreErrors.cannotLoad(id, down),
      StoreErrors.cannotUse(id, down),
      StoreErrors.cannotCommit(id, down)).foreach { told =>
      val lines = Utils.exceptionString(told).linesIterator.toSeq
      assert(lines.exists(_.contains("connection refused")))
      assert(lines.last == told.getMessage)
    }
  }

  test("the store of most operators goes without its name") {
    val told = StoreErrors.cannotLoad(StateStoreId("/x", 0L, 3), new ConfigException(advice))
    assert(told.getMessage.startsWith("The state of operator 0, partition 3 was not loaded. "))
  }

  test("lost state names the commands, with everything filled in") {
    val checkpoint = Files.createTempDirectory("lost it")
    val options = Map("keyPrefix" -> "shop", "username" -> "joe", "passwordFile" -> "/etc/pw")
    val place = s"--checkpoint '$checkpoint'"
    val server =
      "--url redis://127.0.0.1:6379/0 --key-prefix shop --username joe --password-file /etc/pw"
    val without = waysOn(new StateLostException(advice), checkpoint, options)
    assert(without.startsWith("Keep the checkpoint folder."))
    assert(without.contains(s"`redis-state doctor $place $server`"))
    assert(!without.contains("redis-state restore"))

    val copy = Files.createDirectories(
      checkpoint.resolve(s"state/_redis_state_copies/5-${"0" * 32}"))
    Files.writeString(copy.resolve("manifest"), "digest\n{\"version\": 5, \"offsets\": \"x\"}")
    val withCopy = waysOn(new StateLostException(advice), checkpoint, options)
    assert(withCopy.contains(s"`redis-state restore $place --yes $server`"))
  }

  test("the ways on hold no password, and a purged checkpoint has a way of its own") {
    val checkpoint = Files.createTempDirectory("lost")
    val told = waysOn(
      new StateLostException(advice),
      checkpoint,
      Map("username" -> "joe", "password" -> "geheim"))
    assert(!told.contains("geheim"))
    val purged = new StateLostException(advice, isPurged = true)
    assert(waysOn(purged, checkpoint, Map.empty) == "")
    others.foreach(ours => assert(waysOn(ours, checkpoint, Map.empty) == ""))
  }

  test("the tools get the address that the query has") {
    val conf = RedisStateConf(Map(RedisStateConf.Prefix + "url" -> "redis://h:1/0"), 100)
    val told = WaysOn.after(
      new StateLostException(advice),
      StateStoreId("s3a://bucket/orders/state", 0L, 0),
      conf,
      new Configuration(false))
    assert(told.contains("--checkpoint s3a://bucket/orders "))
  }

  private def waysOn(
      e: RedisStateException,
      checkpoint: Path,
      options: Map[String, String]): String = {
    val named = options + ("url" -> "redis://127.0.0.1:6379/0")
    val confs = named.map { case (name, value) => RedisStateConf.Prefix + name -> value }
    val store = StateStoreId(checkpoint.resolve("state").toString, 0L, 0)
    WaysOn.after(e, store, RedisStateConf(confs, 100), new Configuration)
  }

  private def condition(e: Throwable): String = e match {
    case spark: SparkException => spark.getCondition
    case other => fail(other)
  }
}
