package org.apache.spark.sql.redisstate

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.redisstate.query.{
  PrefetchStateRule,
  TransformWithStateInPySparkOnRedis,
  TransformWithStateOnRedis
}

/**
 * Extension that makes `transformWithState` run on this provider, and reads state ahead of its
 * operators: `spark.sql.extensions` names it, which `redis_state.configure` does.
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
    else PrefetchStateRule(withProcessors(plan))

  private def withProcessors(plan: SparkPlan): SparkPlan = plan.transformUp {
    case spark: TransformWithStateExec
        if spark.isStreaming && !spark.isInstanceOf[TransformWithStateOnRedis] =>
      new TransformWithStateOnRedis(spark)
    case spark: TransformWithStateInPySparkExec
        if spark.isStreaming && !spark.isInstanceOf[TransformWithStateInPySparkOnRedis] =>
      new TransformWithStateInPySparkOnRedis(spark)
  }
}

/** Advice for a user whose query needs the extension. */
private[redisstate] object TransformWithStateAdvice {

  /** Returns the advice; None where a query has no such operator, or the extension is set. */
  def of(plan: LogicalPlan, extensions: Option[String]): Option[String] = {
    val name = classOf[RedisStateSparkExtension].getName
    val there = extensions.exists(_.split(',').exists(_.trim == name))
    if (there || !plan.exists(_.nodeName.startsWith("TransformWithState"))) None
    else {
      Some("transformWithState on this state store needs an extension of the Spark session: set " +
        s"${StaticSQLConf.SPARK_SESSION_EXTENSIONS.key}=$name before the session starts, or call redis_state.configure.")
    }
  }
}
