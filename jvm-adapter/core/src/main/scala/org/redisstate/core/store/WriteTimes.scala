package org.redisstate.core.store

import org.redisstate.core.format.Family
import org.redisstate.core.local.Expiry

/**
 * Time of a version that is written, and the expiry that its rows get.
 *
 * @param timeS seconds since 1970
 * @param ttlMs time to live of the rows; None where they do not expire
 * @param stepsMin least number of steps of the time to live
 */
private[store] final case class WriteTimes(
    timeS: Long,
    ttlMs: Option[Long],
    stepsMin: Int = Expiry.StepsMin) {

  /** Expiry of a row that is written. */
  val expiryS: Long = ttlMs.fold(Expiry.Never)(Expiry.after(timeS, _, stepsMin))

  /** Returns a family as the version describes it. */
  def described(family: Family): Family = family.copy(ttl = ttlMs.nonEmpty && family.canExpire)

  /** Returns the expiry of rows to the writer. */
  def of(families: Seq[Family]): Expiry = Expiry(timeS, families)
}

private[store] object WriteTimes {

  /** Times of a version whose rows do not expire. */
  val None: WriteTimes = WriteTimes(0, scala.None)
}
