package org.apache.spark.sql.redisstate

/** Spark 4.0 opens a store that writes beside the one that reads. */
private[redisstate] trait ProviderShim extends OpensSince42
