package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.ReadStateStore

/** Spark 4.3 tells a read-only store which column families will be read. */
private[redisstate] trait ReadStoreShim extends ReadStateStore
