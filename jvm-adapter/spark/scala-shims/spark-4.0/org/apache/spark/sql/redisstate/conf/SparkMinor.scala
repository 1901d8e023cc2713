package org.apache.spark.sql.redisstate.conf

/** Spark minor that this jar is built for. */
private[redisstate] object SparkMinor {
  val BuiltFor = "4.0"

  /** True if the state reader opens the stores of a join by `getReadStore`, not by `getStore`. */
  val ReadsJoinsOnly = false
}
