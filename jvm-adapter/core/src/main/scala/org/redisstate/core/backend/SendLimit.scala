package org.redisstate.core.backend

import java.io.IOException
import java.net.Socket
import java.util.concurrent.{Executors, ScheduledThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import org.redisstate.core.backend.SendLimit._

/**
 * Limits how long a request may take to be sent. A read has a limit in the socket (`SO_TIMEOUT`), a
 * write has none in Java: a server that hangs, or a network that swallows everything, would block
 * the caller for minutes or for ever.
 *
 * @param timeoutMs for a request, and again for each MiB of it
 */
private[backend] final class SendLimit(socket: Socket, timeoutMs: Long) {

  /** @throws TransportException when the time was over; the connection is closed then */
  def within(bytes: Long)(send: => Unit): Unit =
    if (bytes <= AlwaysTaken) send
    else {
      val limitMs = timeoutMs * (1 + (bytes >> 20))
      // Set before the close: the send fails while the close still runs.
      val isOver = new AtomicBoolean
      val closing = timer.schedule(
        (() => { isOver.set(true); close() }): Runnable,
        limitMs,
        TimeUnit.MILLISECONDS)
      try send
      catch {
        case e: RuntimeException if isOver.get =>
          throw new TransportException(
            s"it did not accept a request of $bytes bytes within $limitMs ms",
            e)
      } finally {
        closing.cancel(false)
        ()
      }
    }

  private def close(): Unit =
    try socket.close()
    catch { case _: IOException => () } // it is closed
}

private object SendLimit {

  /** The operating system takes so much of a new request at once, whatever the other side does. */
  private val AlwaysTaken = 16L << 10

  private val timer = {
    val threads = new ScheduledThreadPoolExecutor(
      1,
      (work: Runnable) => {
        val thread = Executors.defaultThreadFactory.newThread(work)
        thread.setName("redis-state-send-limit")
        thread.setDaemon(true)
        thread
      })
    threads.setRemoveOnCancelPolicy(true)
    threads
  }
}
