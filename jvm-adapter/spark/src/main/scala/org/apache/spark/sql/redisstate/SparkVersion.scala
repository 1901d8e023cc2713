package org.apache.spark.sql.redisstate

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.redisstate.conf.{OptionTable, SparkMinor}

import org.redisstate.core.errors.ConfigException

/**
 * Checks that a jar runs on the Spark minor that it was built for. On another one the interface of
 * state stores differs, and the first call would end in a `NoSuchMethodError`.
 */
private[redisstate] object SparkVersion {

  /** @throws ConfigException naming the right jar, or the versions there are jars for */
  def check(running: String): Unit = {
    val minor = running.split('.').take(2).mkString(".")
    if (minor != SparkMinor.BuiltFor) {
      val supported = OptionTable.sparkMinors
      val advice =
        if (supported.contains(minor)) s"Use the jar redis-state-spark-${minor}_2.13 instead"
        else s"This release supports Spark ${supported.mkString(" or ")}"
      throw new ConfigException(
        s"this jar of redis-state is built for Spark ${SparkMinor.BuiltFor}, but Spark $running runs. $advice; " +
          "redis_state.configure and `redis-state conf` choose the jar of the pyspark that runs them.")
    }
  }
}

/** A base class, because Spark's traits are made after it: one of another minor fails when it is made. */
private[redisstate] abstract class SparkVersionChecked {
  SparkVersion.check(SPARK_VERSION)
}
