package org.apache.spark.sql.redisstate

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkException

import org.redisstate.core.errors._

/** What a user reads last is ours, whatever the kind; Spark's callers find the conditions that they look for. */
class StoreErrorsSuite extends AnyFunSuite {
  private val advice = "Look at this, then do that."
  private val all: Seq[RedisStateException] = Seq(
    new ConfigException(advice),
    new NotFoundException(advice),
    new FencedException(advice),
    new UnavailableException(advice),
    new FullException(advice),
    new PermissionException(advice),
    new OutcomeUnknownException(advice),
    new NotDurableException(advice),
    new FormatException(advice),
    new StateLostException(advice),
    new VersionExpiredException(advice),
    new MarkerMissingException(advice),
    new CheckpointMovedException(advice),
    new LimitException(advice),
    new InternalException(advice)
  )

  test("each error of a load ends with our advice") {
    all.foreach { ours =>
      val told = StoreErrors.cannotLoad("store 7", ours)
      assert(told.getMessage.startsWith("The state of store 7 was not loaded."))
      assert(told.getMessage.endsWith(s"[REDIS_${ours.kind}] $advice"))
      assert(condition(told).startsWith("CANNOT_LOAD_STATE_STORE."))
      assert(told.getCause eq ours)
    }
  }

  test("a version that is not there has the condition of a missing file") {
    Seq(new StateLostException(advice), new VersionExpiredException(advice)).foreach { ours =>
      val told = StoreErrors.cannotLoad("store 7", ours)
      assert(condition(told) == "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE")
    }
  }

  test("each error of a commit ends with our advice") {
    all.foreach { ours =>
      val told = StoreErrors.cannotCommit("store 7", ours)
      assert(told.getMessage.endsWith(s"[REDIS_${ours.kind}] $advice"))
      assert(condition(told) == "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT")
      assert(told.getCause eq ours)
    }
  }

  private def condition(e: Throwable): String = e match {
    case spark: SparkException => spark.getCondition
    case other => fail(other)
  }
}
