package org.apache.spark.sql.redisstate.query

import scala.util.control.ControlThrowable

import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.ExecutorRegistry

import org.redisstate.core.backend.{ConnectionSettings, Topology}
import org.redisstate.core.errors.{RedisStateException, UnavailableException}
import org.redisstate.core.protocol.Rights

/**
 * Asks the server before the first task of a query exists: its address, version and settings, the
 * login, and the user's rights.
 */
private[redisstate] object StartCheck {

  /** Nobody listens at a wrong address, however long one asks. */
  private[redisstate] val LimitMs = 10000L

  /** Limit of a start where another server may take over, which takes a while. */
  private val FailOverLimitMs = 30000L

  /** @throws RedisStateException what is wrong, and what to do */
  def run(conf: RedisStateConf): Unit = {
    // The connections of the queries before: they know the nodes of a cluster, where the one of the
    // URL may be gone.
    val backend = ExecutorRegistry.acquire(conf.connection)
    try Rights.check(backend.within(limitMs(conf.connection)), conf.keyPrefix)
    catch {
      // It is there, and loads its data or waits for its master: that may take as long as the deadline.
      case e: UnavailableException if e.isAnswered => ()
    } finally ExecutorRegistry.release(conf.connection)
  }

  private def limitMs(settings: ConnectionSettings): Long =
    if (settings.url.topology == Topology.Single) LimitMs else FailOverLimitMs
}

/**
 * Ends a query before its first batch. Spark's listener bus keeps every other error to itself: only
 * those go through that Scala does not count as `NonFatal`. Spark makes the query's end of it, with
 * this text.
 */
private[redisstate] final class StartRefused(ours: RedisStateException)
    extends ControlThrowable(s"The query was not started. ${ours.getMessage}") {
  override def getCause: Throwable = ours
}

private[redisstate] object StartRefused {
  private val QueryThread = "stream execution thread"

  /**
   * Returns whether the query can be ended from here: Spark calls its listeners on the query's own
   * thread.
   */
  def isPossible: Boolean = Thread.currentThread().getName.startsWith(QueryThread)

  /**
   * Ends the query with an error. Spark records the error and throws it on; the thread ends then,
   * so no handler has to print it.
   */
  def refuse(ours: RedisStateException): Nothing = {
    Thread.currentThread().setUncaughtExceptionHandler((_, _) => ())
    throw new StartRefused(ours)
  }
}
