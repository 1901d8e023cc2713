package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.StateStore

/** Since 4.2 Spark's interface of a store for writing has more methods. */
private[redisstate] trait WriteStoreShim extends StateStore
