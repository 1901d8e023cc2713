package org.apache.spark.sql.redisstate.stores

/** Spark 4.1's interface of a read-only store lacks only what came with 4.2. */
private[redisstate] trait ReadStoreShim extends ReadsSince42
