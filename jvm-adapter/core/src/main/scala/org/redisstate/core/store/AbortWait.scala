package org.redisstate.core.store

import java.util.concurrent.{ExecutionException, Future, TimeUnit, TimeoutException}

import org.slf4j.LoggerFactory

import org.redisstate.core.ids.PartitionId

/** How long an abort waits for the removal of what was staged. */
private[store] object AbortWait {
  private val log = LoggerFactory.getLogger(getClass)
  private val MostNs = 5L * 1000 * 1000 * 1000

  /** Waits a while; an interrupt of this thread counts afterwards. */
  def of(removal: Future[_], ident: String, id: PartitionId): Unit = {
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
