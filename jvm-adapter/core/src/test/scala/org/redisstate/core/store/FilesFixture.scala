package org.redisstate.core.store

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Clock, Transport}
import org.redisstate.core.format.BlockSigner
import org.redisstate.core.ids.Keys
import org.redisstate.core.places.PlayedFiles
import org.redisstate.core.protocol._

/** Queries whose history moves into a played folder. */
private[store] trait FilesFixture {

  def begun(
      p: TestPartition,
      format: CheckpointFormat = CheckpointFormat.V1,
      signer: Option[BlockSigner] = None): Timeline = {
    val query = new Timeline(p, "a", format, signer)
    query.commit(5)
    query.maintain()
    query.commit(5)
    query.maintain()
    query
  }

  /** A mover that knows nothing of the query. */
  def move(query: Timeline, signer: Option[BlockSigner] = None): MoveReport =
    query.partition.store("mover", signer = signer).client.files.moveHistory()

  /** Commits until retention, of five versions, has dropped what was moved. */
  def dropMoved(query: Timeline): Unit = Seq(12, 8).foreach { versions =>
    query.commit(versions)
    query.maintain()
  }

  def onServer(
      clock: Clock = Clock.System,
      retained: Int = 100,
      between: Transport => Transport = identity)(body: (TestPartition, PlayedFiles) => Unit)
      : Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val files = new PlayedFiles(() => clock.nowMs)
      val partition =
        new TestPartition(
          server,
          retained,
          clock = clock,
          between = between,
          folders = Some(files))
      try body(partition, files)
      finally partition.close()
    }

  def placed(p: TestPartition): Map[String, String] = PinFields.of(p, "a").filter(
    _._2.startsWith("f "))

  def rows(p: TestPartition): Map[String, String] = p.raw.hgetAll(Keys.files(p.id)).asScala.toMap

  /** The minute is over for which the keys of segments that have moved stay. */
  def expire(p: TestPartition): Unit = placed(p).keys.foreach { ident =>
    val key = Keys.segment(p.id, ident)
    if (p.raw.exists(key)) assert(p.raw.pttl(key) > 0 && p.raw.pttl(key) <= 60000)
    p.raw.del(key)
  }

  def age(p: TestPartition, file: String, ms: Long): Unit = {
    val words = rows(p)(file).split(' ')
    p.raw.hset(
      Keys.files(p.id),
      file,
      words.updated(1, (words(1).toLong - ms).toString).mkString(" "))
    ()
  }

  /** A clock that waits for nobody. */
  final class Slept extends Clock {
    private val slept = new java.util.concurrent.atomic.AtomicLong
    override def nowMs: Long = Clock.System.nowMs + slept.get
    override def sleep(ms: Long): Unit = {
      slept.addAndGet(ms)
      ()
    }
  }

  /** Ends a step of a process that is killed there. */
  final class KilledException extends RuntimeException
}
