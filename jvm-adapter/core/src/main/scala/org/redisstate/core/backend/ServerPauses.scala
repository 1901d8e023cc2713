package org.redisstate.core.backend

import java.util.concurrent.ConcurrentHashMap

import org.slf4j.LoggerFactory

import org.redisstate.core.concurrent.GuardedBy

/**
 * Pauses of background work on servers that do not answer. Stores of many servers share the threads
 * of such work, and each call to a silent server holds its thread until the deadline. So after one
 * such call the work of all stores on that server is skipped. When a pause ends, one thread tries
 * the server again: the pause doubles, or the silence ends. Calls of tasks, which do not wait for
 * the end of a pause, end it too. Thread-safe.
 */
private[backend] final class ServerPauses(clock: Clock) {
  import ServerPauses._

  private val silences = new ConcurrentHashMap[String, Silence]

  /**
   * Does work on a server, or skips it while the server is silent.
   *
   * @param server name of the server, for the log
   * @param answers tries a server that was silent once, without repetition
   * @param wasAnswered whether the newest call of the work was answered; asked after the work, also
   * if the work fails
   * @return whether the work was done
   */
  def run(server: String, answers: => Boolean, wasAnswered: => Boolean)(work: => Unit): Boolean =
    Option(silences.get(server)) match {
      case Some(silence) if !silence.begin(clock.nowMs) => false
      case Some(silence) =>
        var isOver = false
        try {
          if (answers) {
            try work
            finally isOver = wasAnswered
            true
          } else false
        } finally if (isOver) end(server, silence) else silence.extend(clock.nowMs)
      case None =>
        try {
          work
          true
        } finally if (!wasAnswered) begin(server)
    }

  /** Ends a pause, since a task has written to the server. */
  def endPause(server: => String): Unit = if (!silences.isEmpty) {
    val name = server
    Option(silences.get(name)).foreach(end(name, _))
  }

  /** Allows the next work to try a server that has answered a task. */
  def shortenPause(server: => String): Unit = if (!silences.isEmpty)
    Option(silences.get(server)).foreach(_.hasten(clock.nowMs))

  private def begin(server: String): Unit = {
    val made = new Silence(clock.nowMs)
    if (silences.putIfAbsent(server, made) == null)
      log.warn(
        "{} does not answer. Background work on it pauses: maintenance, read-ahead and previews. No state depends on them, and " +
          "tasks go on trying",
        server)
  }

  private def end(server: String, silence: Silence): Unit =
    if (silences.remove(server, silence))
      log.info(
        "{} answers again after {} s; background work on it goes on",
        server,
        (clock.nowMs - silence.sinceMs) / 1000)
}

private[backend] object ServerPauses {
  private val log = LoggerFactory.getLogger(classOf[ServerPauses])
  private[backend] val PauseMinMs = 1000L
  private[backend] val PauseMaxMs = 60000L

  /** Time in which a server does not answer, and the pause before it is tried again. */
  private final class Silence(val sinceMs: Long) {
    @GuardedBy("this") private var pauseMs = PauseMinMs
    @GuardedBy("this") private var untilMs = sinceMs + PauseMinMs
    @GuardedBy("this") private var isTried = false

    /**
     * Returns whether the caller has to try the server now; then nobody else does, for as long as
     * the longest pause: the caller's work may be long, or stuck elsewhere.
     */
    def begin(nowMs: Long): Boolean = synchronized {
      val isMine = nowMs >= untilMs
      if (isMine) {
        isTried = true
        untilMs = nowMs + PauseMaxMs
      }
      isMine
    }

    /** Ends the pause, unless the server is being tried. */
    def hasten(nowMs: Long): Unit = synchronized(if (!isTried) untilMs = nowMs)

    def extend(nowMs: Long): Unit = synchronized {
      pauseMs = math.min(PauseMaxMs, 2 * pauseMs)
      untilMs = nowMs + pauseMs
      isTried = false
    }
  }
}
