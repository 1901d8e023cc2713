package org.apache.spark.sql.redisstate.conf

/** What this jar is built for. */
private[redisstate] object SparkMinor {
  val BuiltFor = "4.1"
}
