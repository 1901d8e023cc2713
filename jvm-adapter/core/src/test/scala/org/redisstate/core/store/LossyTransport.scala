package org.redisstate.core.store

import java.util.concurrent.atomic.AtomicInteger

import org.redisstate.core.backend.{Command, Transport, TransportException}

/** Loses every third reply after the server has done the work. */
private[store] final class LossyTransport(next: Transport) extends Transport {
  private val calls = new AtomicInteger

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    val replies = next.exchange(commands)
    if (calls.incrementAndGet() % 3 == 0) throw new TransportException("lost", null)
    replies
  }

  override def close(): Unit = next.close()
}
