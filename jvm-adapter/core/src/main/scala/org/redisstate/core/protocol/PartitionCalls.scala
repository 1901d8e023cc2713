package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.atomic.AtomicLong

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors.InternalException
import org.redisstate.core.ids.{Keys, PartitionId}
import org.redisstate.core.protocol.manifest.Stored

/** Calls to the server for one partition, counted. Thread-safe. */
private[protocol] final class PartitionCalls(backend: RedisBackend, val id: PartitionId) {
  import PartitionCalls.words

  val meta: String = Keys.meta(id)

  /** Key of the partition's list of files. */
  val files: String = Keys.files(id)
  val roundTrips: AtomicLong = new AtomicLong
  val bytesSent: AtomicLong = new AtomicLong
  val bytesRead: AtomicLong = new AtomicLong
  val times: CallTimes = new CallTimes
  val filed: FileCounters = new FileCounters

  def script(what: String, script: Script, args: Seq[String]): Seq[AnyRef] =
    this.script(what, script, Nil, args.map(Command.bytes))

  /** Runs a script on the manifest and the list of files. */
  def fileScript(what: String, script: Script, args: Seq[String]): Seq[AnyRef] = {
    roundTrips.incrementAndGet()
    times.timed(backend.script(what, script, Seq(meta, files), args.map(Command.bytes)))
  }

  /** @param idents of the segments whose keys follow that of the manifest */
  def script(
      what: String,
      script: Script,
      idents: Seq[String],
      args: Seq[Array[Byte]]): Seq[AnyRef] =
    keyed(what, script, idents.map(Keys.segment(id, _)), args)

  /** @param keys that follow that of the manifest */
  def keyed(
      what: String,
      script: Script,
      keys: Seq[String],
      args: Seq[Array[Byte]]): Seq[AnyRef] = {
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(args.iterator.map(_.length.toLong).sum)
    times.timed(backend.script(what, script, meta +: keys, args))
  }

  /** Runs a script on the manifest and a segment with each of these arguments, in one pipeline. */
  def scripts(
      what: String,
      script: Script,
      ident: String,
      calls: Seq[Seq[Array[Byte]]]): Seq[Seq[AnyRef]] = {
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(calls.iterator.flatten.map(_.length.toLong).sum)
    times.timed(backend.scripts(what, script, Seq(meta, Keys.segment(id, ident)), calls))
  }

  /** Sends writes that belong together, and that may be sent again. */
  def transaction(what: String, commands: Seq[Command]): Seq[AnyRef] = {
    roundTrips.incrementAndGet()
    bytesSent.addAndGet(commands.iterator.map(_.bytes).sum)
    times.timed(backend.transaction(what, commands, isCommit = false))
  }

  /** Does background work, or skips it while the server is silent; returns whether it was done. */
  def whileAnswering(work: => Unit): Boolean = backend.whileAnswering(meta)(work)

  /** Time for which a call is repeated, and the clock for that. */
  def repeatsForMs: Long = backend.repeatsForMs
  def clockMs: Long = backend.nowMs

  /** Waits between two looks at a file. */
  def pause(ms: Long): Unit = backend.pause(ms)

  def commands(what: String, commands: Seq[Command]): Seq[AnyRef] = {
    roundTrips.incrementAndGet()
    times.timed(backend.call(what, commands))
  }

  /** All fields of the manifest; none if there is no partition. */
  def manifest(what: String): Map[String, String] = fields(what, meta)

  /** All fields of a hash of the partition. */
  def fields(what: String, key: String): Map[String, String] =
    words(commands(what, Seq(Command("HGETALL", key))).head).grouped(2).collect {
      case Seq(field, value) => field -> value
    }.toMap

  /** Clock of the node that has the partition, which sets the times in it. */
  def nowMs(what: String): Long =
    words(commands(what, Seq(Command("EXISTS", meta), Command("TIME"))).last) match {
      case Seq(seconds, micros) =>
        Stored.number(what, seconds) * 1000 + Stored.number(what, micros) / 1000
      case _ => throw new InternalException(s"$what: the server did not answer TIME with a time.")
    }
}

private[protocol] object PartitionCalls {

  /** Values of the manifest's field `f` with which this release changes the partition. */
  val Formats: Set[String] = Set("1", "2")

  /** Returns the parts of a script's reply as text. */
  def words(reply: AnyRef): Seq[String] = reply match {
    case items: Seq[_] =>
      items.map { case b: Array[Byte] => new String(b, UTF_8); case x => String.valueOf(x) }
    case other => Seq(String.valueOf(other))
  }
}
