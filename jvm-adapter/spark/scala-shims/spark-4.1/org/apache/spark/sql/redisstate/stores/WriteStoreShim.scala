package org.apache.spark.sql.redisstate.stores

/** Spark 4.1's interface of a store for writing lacks only what came with 4.2. */
private[redisstate] trait WriteStoreShim extends WritesSince42
