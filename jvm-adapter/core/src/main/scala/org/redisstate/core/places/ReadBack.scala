package org.redisstate.core.places

import java.util

import scala.annotation.tailrec

/** Reads the end of a written region back, which detects a truncated upload. */
private[core] object ReadBack {

  /**
   * Number of attempts to find a file, and the pause in between: some stores show a new file late.
   */
  val LooksMax: Int = 4
  val LookPauseMs: Long = 1700L

  /** Returns whether the end of a region reads as it was written. */
  def isWhole(store: FileStore, region: WrittenRegion, pause: Long => Unit): Boolean = {
    val place = region.place
    val from = place.offset + place.bytes - place.headBytes
    @tailrec def read(left: Int): Option[Array[Byte]] = {
      val found =
        try Some(store.read(place.file, from, place.headBytes))
        catch { case _: FileMissing => None }
      if (found.nonEmpty || left == 1) found
      else {
        pause(LookPauseMs)
        read(left - 1)
      }
    }
    read(LooksMax).exists(util.Arrays.equals(_, region.head))
  }
}
