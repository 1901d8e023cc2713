package org.redisstate.core.store

import org.redisstate.core.format.Family
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Content, KeyHash}
import org.redisstate.core.protocol.SegmentGone

/** A delta since the last snapshot, for deciding when the next one is due. */
private[store] final case class DeltaSize(version: Long, bytes: Long)

/**
 * One version in executor memory. Its rows never change; how they are kept does: compaction and reloading put an equal content in the
 * place of the old one.
 *
 * @param snapshotBytes bytes of the newest snapshot below, 0 if there is none
 * @param deltas since that snapshot, newest first
 */
private[store] final class LocalVersion(
    val pin: Pin,
    val live: Long,
    val families: Seq[Family],
    initial: Content,
    val snapshotBytes: Long,
    val deltas: List[DeltaSize],
    reload: Pin => Content) {
  @volatile private var current: Content = initial
  val hashOf: KeyHash = KeyHash.of(families)

  def content: Content = current

  /** Puts an equal content in the place of `old`; nothing when another thread was first. */
  def replace(old: Content, now: Content): Unit = synchronized {
    if (current eq old) current = now
  }

  /** Runs a read; when a segment under it was replaced meanwhile, resolves the version again. */
  def read[A](body: Content => A): A = {
    var tries = 0
    while (true) {
      val used = current
      try return body(used)
      catch {
        case e: SegmentGone =>
          tries += 1
          if (tries > LocalVersion.ReloadsMax) throw e
          replace(used, reload(pin))
      }
    }
    throw new IllegalStateException
  }
}

private[store] object LocalVersion {
  private val ReloadsMax = 3
}
