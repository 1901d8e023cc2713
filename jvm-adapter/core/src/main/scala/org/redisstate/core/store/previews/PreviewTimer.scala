package org.redisstate.core.store.previews

import java.lang.ref.WeakReference
import java.util.concurrent.{Executors, TimeUnit}

import org.slf4j.LoggerFactory

/** The thread of this process that sets previews, one after the other. */
private[store] object PreviewTimer {
  private val log = LoggerFactory.getLogger(getClass)

  private lazy val thread = Executors.newSingleThreadScheduledExecutor { work =>
    val thread = new Thread(work, "redis-state-previews")
    thread.setDaemon(true)
    thread
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
        // Errors, too: changes would wait for a preview that never comes.
        case e: Throwable =>
          writer.giveUp(e.toString)
          log.warn("previews of a batch ended; the batch itself goes on", e)
      }
    }
}
