package org.redisstate.core.store.previews

/**
 * Estimated work for a change that a preview sends. It follows what many changes took together. Of
 * few, the round trips are most of the work, so these only lower the estimate. For one thread.
 */
private[store] final class ChangeCost {
  import ChangeCost._

  private var ns = BeginNs

  /** Returns how many changes so much work can send. */
  def changesIn(workNs: Long): Long = (workNs / ns).toLong

  /** Learns from the work that some changes took. */
  def learn(changes: Int, workNs: Long): Unit = if (changes > 0) {
    val found = workNs.toDouble / changes
    if (changes >= Many || found < ns) ns += (found - ns) * NewShare
  }
}

private object ChangeCost {
  private val BeginNs = 500.0
  private val NewShare = 0.3
  private val Many = 4096
}
