package org.apache.spark.sql.redisstate

import java.nio.charset.StandardCharsets.US_ASCII

import scala.util.Using

import org.scalatest.Assertions

import org.apache.spark.sql.{SparkSession, SparkSessionExtensions}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.query.PrefetchStateRule

import org.redisstate.core.TestConnection
import org.redisstate.core.backend.Command
import org.redisstate.core.format.Entry

/**
 * Share of a partition that the states of Spark's suites exceed, so that segments move to files and
 * tasks read files all the time: the bytes that the environment variable `REDIS_STATE_TIGHT` has.
 * The states are far below the least share that `redisMemory` gives.
 */
private[redisstate] object Tight extends Assertions {
  private[redisstate] val shareBytes: Option[Long] =
    sys.env.get("REDIS_STATE_TIGHT").filter(_.nonEmpty).map(_.toLong)

  /** Number of deltas that take more than a share: each takes 420 bytes at least. */
  private val DeltasMin = 4

  /** Options of a provider. */
  val options: Map[String, String] =
    shareBytes.fold(Map.empty[String, String])(_ =>
      Map(
        s"${RedisStateConf.Prefix}redisMemory" -> "1g",
        s"${RedisStateConf.Prefix}localMemory" -> "1m"))

  /** Settings of a session. With a share, each task opens its stores anew, and so reads files. */
  def settings: Map[String, String] = options ++ shareBytes.fold(
    Map(StaticSQLConf.SPARK_SESSION_EXTENSIONS.key -> classOf[RedisStateSparkExtension].getName))(
    _ =>
      Map(
        StaticSQLConf.SPARK_SESSION_EXTENSIONS.key -> classOf[TightExtension].getName,
        SQLConf.STATE_STORE_UNLOAD_ON_COMMIT.key -> "true"))

  def newProvider(): RedisStateStoreProvider =
    shareBytes.fold(new RedisStateStoreProvider)(_ => new TightProvider)

  /**
   * Fails if partitions have more deltas than their share takes, and no segment moved to a file.
   * Many tests of Spark's write one version or two.
   */
  def check(suite: Class[_], url: String): Unit = if (shareBytes.nonEmpty) {
    Using.resource(TestConnection.backend(url)) { server =>
      def texts(words: String*): Seq[String] =
        server.call("a test", Seq(Command(words.head, words.tail: _*))).head
          .asInstanceOf[Seq[Array[Byte]]].map(new String(_, US_ASCII))
      val grown = texts("KEYS", "*:m").count { meta =>
        val deltas = texts("HGETALL", meta).grouped(2).collect {
          case Seq(field, entry) if field.startsWith("d:") => Entry.parse(entry)
        }
        deltas.count(_.blocks > 0) >= DeltasMin
      }
      val filed = texts("KEYS", "*:f").count(texts("HVALS", _).exists(_.head != 'n'))
      println(s"${suite.getSimpleName}: $filed partitions have files, $grown have versions enough")
      assert(grown == 0 || filed > 0, s"no segment of $suite moved to a file")
    }
  }
}

/** Our provider, with that share if there is one. */
private[redisstate] class TightProvider extends RedisStateStoreProvider {
  override private[redisstate] def shareOf(part: Long): Long =
    if (part > 0) Tight.shareBytes.getOrElse(part) else part
}

/** Our extension for sessions with `TightProvider`: the product's one goes by the provider's name. */
private[redisstate] class TightExtension extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar((_: SparkSession) =>
      new ColumnarRule {
        override def preColumnarTransitions: Rule[SparkPlan] = TightRule
      })
}

private object TightRule extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan =
    if (conf.getConf(SQLConf.STATE_STORE_PROVIDER_CLASS) != OnRedis.Ours) plan
    else PrefetchStateRule(ProcessorsOnRedis(plan))
}
