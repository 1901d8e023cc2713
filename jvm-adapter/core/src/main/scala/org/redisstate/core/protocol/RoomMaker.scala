package org.redisstate.core.protocol

import org.slf4j.LoggerFactory

import org.redisstate.core.errors._
import org.redisstate.core.protocol.manifest.{ManifestFields, Stored}

/** A share has no room for blocks that may go to a file instead. */
final class ShareFull extends RuntimeException("the share is full", null, false, false)

/**
 * Makes room after the answers `ROOM` of a commit or of a stage: segments leave for files until the
 * refused blocks fit.
 *
 * @param ident whose blocks these are
 * @param leave moves segments of at least so many bytes to files; returns their number, or None if
 *   nothing is left to move
 * @param dropRuns drops hot runs; returns their number
 * @param dropStaged removes blocks that are staged for snapshots and hot runs; returns the number of
 *   their keys
 */
private[protocol] final class RoomMaker(
    calls: PartitionCalls,
    ident: String,
    leave: Long => Option[Int],
    dropRuns: () => Int,
    dropStaged: () => Int) {
  import RoomMaker._

  private var isEmpty = false
  private var wasted = 0

  /** End of the wait for blocks of other attempts, once it began. */
  private var waitsToMs = Option.empty[Long]

  /**
   * Makes room; the caller sends the same call again.
   *
   * @param reply `ROOM`, the bytes that have to leave, and the share
   * @throws NoRoomException if nothing is left that could leave
   * @throws UnavailableException if the folder took nothing until the deadline
   */
  def make(what: String, reply: Seq[String]): Unit = {
    def number(at: Int): Long = Stored.number(what, reply.lift(at).getOrElse(""))
    val (lacking, share) = (number(1), number(2))
    log.info("{}: {} bytes more than the share", what: Any, lacking)
    calls.filed.roomWaits.incrementAndGet()
    counted(moved(what, lacking, share).orElse(Some(dropStaged()).filter(_ > 0))) match {
      // Another thread may have moved the last segment meanwhile: then the next try fits.
      case None if !isEmpty => isEmpty = true
      case Some(segments) if segments > 0 || wasted < WastedMax =>
        isEmpty = false
        wasted = if (segments > 0) 0 else wasted + 1
      case None if counted(waited(what, lacking)) => ()
      case _ =>
        throw new NoRoomException(
          s"$what: it needs $lacking bytes more than the partition's share of $share bytes in Redis, although all that could " +
            "leave is in files. Nothing was changed. Start the query with a larger redisMemory, with more partitions, or with " +
            "smaller batches.")
    }
  }

  /**
   * Waits a while where blocks that other attempts have staged take the room: those of a killed
   * attempt give way a minute after the last of them came.
   *
   * @return false if they take less than what is lacking, or have not given way in time
   */
  private def waited(what: String, lacking: Long): Boolean = {
    val prefix = ManifestFields.LoosePrefix
    val staged = calls.manifest(what).collect {
      case (name, Staged(bytes)) if name.startsWith(prefix) && name != prefix + ident =>
        bytes.toLong
    }.sum
    val end = waitsToMs.getOrElse(calls.clockMs + OthersMaxMs)
    waitsToMs = Some(end)
    val waits = staged >= lacking && calls.clockMs < end
    if (waits) calls.pause(OthersPauseMs)
    waits
  }

  private def counted[A](move: => A): A = {
    val from = System.nanoTime()
    try move
    finally {
      calls.filed.roomWaitNs.addAndGet(System.nanoTime() - from)
      ()
    }
  }

  /**
   * Moves segments out, until the deadline. Where the folder takes nothing, what no version needs
   * leaves Redis instead. Each try announces a file, which has a row in Redis for a day, so later
   * tries are rarer.
   */
  private def moved(what: String, lacking: Long, share: Long): Option[Int] = {
    val end = calls.clockMs + calls.repeatsForMs
    var pauseMs = PauseMinMs
    while (true) {
      try return leave(lacking)
      catch {
        case e @ (_: UnavailableException | _: ConfigException | _: PermissionException) =>
          val dropped = withoutFiles()
          if (dropped > 0) return Some(dropped)
          if (e.isInstanceOf[PermissionException] || calls.clockMs >= end)
            throw new UnavailableException(
              s"$what: the partition has its share of $share bytes in Redis, and nothing could leave for its folder: " +
                s"${e.getMessage} Nothing was changed. See that the folder answers, then start the query again; or start it " +
                "with a larger redisMemory.",
              e
            )
          calls.pause(pauseMs)
          pauseMs = math.min(2 * pauseMs, PauseMaxMs)
      }
    }
    None
  }

  private def withoutFiles(): Int = {
    val runs = dropRuns()
    if (runs > 0) runs else dropStaged()
  }
}

private[protocol] object RoomMaker {
  private val log = LoggerFactory.getLogger(classOf[RoomMaker])
  private val PauseMinMs = 500L
  private val PauseMaxMs = 8000L
  private val WastedMax = 5
  private val Staged = "s ([0-9]{1,18})".r

  /** The minute after which blocks of another attempt give way, and some pauses. */
  private val OthersMaxMs = 72000L
  private val OthersPauseMs = 4000L
  val Refused = "ROOM"

  /**
   * Returns whether a segment that no version needs was entered; a refusal goes to the log.
   *
   * @throws ShareFull if the partition has no room for it
   */
  def isEntered(what: String, reply: Seq[String]): Boolean = reply match {
    case Seq("OK") | Seq("ALREADY") => true
    case Seq(Refused, _*) => throw new ShareFull
    case _ =>
      log.info("{}: {}", what: Any, reply.mkString(" "): Any)
      false
  }
}
