package org.apache.spark.sql.redisstate

import org.apache.spark.sql.execution.streaming.state.StateStore

/** Since 4.2 Spark asks for all that a store which writes can do. */
private[redisstate] trait WriteStoreShim extends StateStore
