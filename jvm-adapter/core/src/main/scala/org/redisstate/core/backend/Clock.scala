package org.redisstate.core.backend

/** Time and waiting, so that tests own both. */
trait Clock {
  def nowMs: Long
  def sleep(ms: Long): Unit
}

object Clock {
  val System: Clock = new Clock {
    override def nowMs: Long = java.lang.System.nanoTime() / 1000000L
    override def sleep(ms: Long): Unit = Thread.sleep(ms)
  }
}
