package org.redisstate.core.store.previews

import java.lang.ref.WeakReference
import java.util.concurrent.{ScheduledThreadPoolExecutor, TimeUnit}

import org.slf4j.LoggerFactory

/** The thread of this process that sets previews, one after the other. */
private[store] object PreviewTimer {
  private val log = LoggerFactory.getLogger(getClass)

  private lazy val thread = {
    val timer = new ScheduledThreadPoolExecutor(
      1,
      (work: Runnable) => {
        val thread = new Thread(work, "redis-state-previews")
        thread.setDaemon(true)
        thread
      })
    timer.setRemoveOnCancelPolicy(true)
    timer
  }

  /** Sets previews from now on, until they are over or nobody holds the writer any more. */
  def start(writer: PreviewWriter): Unit = later(new WeakReference(writer), writer.pauseMs)

  private def later(writer: WeakReference[PreviewWriter], pauseMs: Long): Unit = {
    thread.schedule((() => run(writer)): Runnable, pauseMs, TimeUnit.MILLISECONDS)
    ()
  }

  private def run(reference: WeakReference[PreviewWriter]): Unit =
    Option(reference.get).filterNot(_.isOver).foreach { writer =>
      try {
        writer.run()
        if (!writer.isOver) later(reference, writer.pauseMs)
      } catch {
        case e: Exception =>
          writer.end()
          log.warn("previews of a batch ended; the batch itself goes on", e)
      }
    }
}
