package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.streaming.state.ReadStateStore

/** Spark 4.3 tells a store that only reads which families are asked for. */
private[redisstate] trait ReadStoreShim extends ReadStateStore
