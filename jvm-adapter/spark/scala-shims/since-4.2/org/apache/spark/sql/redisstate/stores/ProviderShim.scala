package org.apache.spark.sql.redisstate.stores

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Since 4.2 Spark passes to each store whether to force a snapshot, and whether to begin empty. */
private[redisstate] trait ProviderShim extends StateStoreProvider
