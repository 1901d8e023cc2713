package org.apache.spark.sql.redisstate.stores

/** Spark 4.0 opens a store for writing separately from the one for reading. */
private[redisstate] trait ProviderShim extends OpensSince42
