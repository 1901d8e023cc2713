package org.apache.spark.sql.redisstate.stores

/** Spark 4.0 ends a read with `abort`; `release` came with 4.1. */
private[redisstate] trait ReadStoreShim extends ReadsSince42 {
  def release(): Unit
}
