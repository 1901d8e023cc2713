package org.apache.spark.sql.redisstate

/** Spark 4.1 has all of what is asked of a store that only reads but what came with 4.2. */
private[redisstate] trait ReadStoreShim extends ReadsSince42
