package org.apache.spark.sql.redisstate.move.engine

import org.redisstate.core.errors.RedisStateException

/** Spark wraps what a task fails with. */
private[redisstate] object Named {

  /** @throws RedisStateException ours, where a failure has one for a cause */
  def errors[T](work: => T): T =
    try work
    catch {
      case e: Exception =>
        throw Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).collectFirst {
          case ours: RedisStateException => ours
        }.getOrElse(e)
    }
}
