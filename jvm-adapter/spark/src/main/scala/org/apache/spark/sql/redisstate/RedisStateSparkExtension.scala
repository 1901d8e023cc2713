package org.apache.spark.sql.redisstate

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.query.PrefetchStateRule

/**
 * Extension that reads state ahead of its operators, and makes `transformWithState` run on this
 * provider where Spark alone does not: `spark.sql.extensions` names it, which
 * `redis_state.configure` does.
 */
class RedisStateSparkExtension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar((_: SparkSession) =>
      new ColumnarRule {
        override def preColumnarTransitions: Rule[SparkPlan] = OnRedisRule
      })
}

/** Comes after all rules that give a streaming operator its state, watermark and schemas. */
private[redisstate] object OnRedisRule extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan =
    if (conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) != classOf[
        RedisStateStoreProvider].getName) plan
    else PrefetchStateRule(ProcessorsOnRedis(plan))
}
