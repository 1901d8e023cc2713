package org.redisstate.core.store

import java.util.concurrent.{CyclicBarrier, TimeUnit}

import org.redisstate.core.store.resources.Background

private[store] object IdleBackground {

  /**
   * Waits until all background helpers are idle. Background work returns its memory when it ends,
   * even if its store was closed.
   */
  def await(): Unit = Seq(false, true).foreach { inFiles =>
    val all = new CyclicBarrier(Background.HelpersMax + 1)
    def meet(): Unit = {
      all.await(60, TimeUnit.SECONDS)
      ()
    }
    (1 to Background.HelpersMax).foreach { _ =>
      Background.helping("waiting for the others", inFiles)(meet())
    }
    meet()
  }
}
