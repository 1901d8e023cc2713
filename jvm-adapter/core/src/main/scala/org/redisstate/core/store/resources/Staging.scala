package org.redisstate.core.store.resources

import java.util.concurrent.{ExecutionException, Future, TimeUnit, TimeoutException}

import org.slf4j.LoggerFactory

import org.redisstate.core.errors.{InternalException, RedisStateException}
import org.redisstate.core.ids.PartitionId

/** Waits for blocks that are on their way to Redis. */
private[store] object Staging {
  private val log = LoggerFactory.getLogger(getClass)
  private val MostNs = 5L * 1000 * 1000 * 1000

  /** @throws RedisStateException what staging them ended with */
  def await(staging: Future[_], ident: String, id: PartitionId): Unit =
    try {
      staging.get()
      ()
    } catch {
      case e: ExecutionException =>
        e.getCause match {
          case named: RedisStateException => throw named
          case other => throw new InternalException(s"staging $ident of $id failed.", other)
        }
    }

  /** Waits a while for their removal; an interrupt of this thread counts afterwards. */
  def awaitRemoval(removal: Future[_], ident: String, id: PartitionId): Unit = {
    val end = System.nanoTime() + MostNs
    var interrupted = false
    var waits = true
    while (waits) {
      try {
        removal.get(end - System.nanoTime(), TimeUnit.NANOSECONDS)
        waits = false
      } catch {
        case _: InterruptedException => interrupted = true
        case e: ExecutionException =>
          log.info(s"blocks of $ident of $id expire by themselves", e)
          waits = false
        case _: TimeoutException =>
          log.info("blocks of {} of {} are removed later", ident: Any, id: Any)
          waits = false
      }
    }
    if (interrupted) Thread.currentThread.interrupt()
  }
}
