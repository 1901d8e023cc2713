package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.UTF_8

import scala.annotation.tailrec

import org.slf4j.LoggerFactory

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.errors.{FencedException, InternalException, RedisStateException}
import org.redisstate.core.format.Place
import org.redisstate.core.ids.{Keys, PartitionId, RegisteredRun}
import org.redisstate.core.protocol.manifest.Stored

/**
 * Report that a process serves a partition.
 *
 * @param text its entry in the table of instances
 * @param totals the entry with the totals of the instance
 * @param isNew whether the instance is new, or took the partition back
 */
final case class InstanceReport(id: PartitionId, text: String, totals: String, isNew: Boolean)

/**
 * Fields of the registry that a writer needs before its first write.
 *
 * @param run of the writer, if it is registered
 * @param movedTo gen to which the partitions of its store have moved, if they have
 * @param files settings of the checkpoint's files, as JSON
 */
final case class WriterFields(
    run: Option[RegisteredRun],
    movedTo: Option[String],
    files: Option[String])

/**
 * The registry of one checkpoint: runs and their epochs, operators, instances (docs/format.md,
 * section 9).
 */
final class RunRegistry(backend: RedisBackend, prefix: String, gen: String) {
  import RunRegistry._

  private val query = Keys.query(prefix, gen)

  /**
   * Does work for which no task waits, or skips it while the server of the registry is silent: in a
   * cluster it may be another one than that of a partition. Must not be nested.
   *
   * @return whether the work was done
   */
  def whileAnswering(work: => Unit): Boolean = backend.whileAnswering(query)(work)

  def lookup(runId: String): Option[RegisteredRun] =
    get(s"run:$runId").head.flatMap(registered(runId, _))

  private def registered(runId: String, entry: String): Option[RegisteredRun] =
    Some(entry.split(' ')).collect { case Array(epoch, source) =>
      RegisteredRun(runId, Stored.number(s"look for run $runId", epoch), source == Driver)
    }

  /** Reads the registry before the first write of a store. */
  def entering(runId: String, operator: Long, storeName: String): WriterFields =
    get(s"run:$runId", movedField(operator, storeName), FilesName, PurgedField) match {
      case Seq(run, moved, files, None) =>
        WriterFields(run.flatMap(registered(runId, _)), moved, files)
      case _ => throw purged(s"enter checkpoint $gen as run $runId")
    }

  /**
   * Notes that the partitions of all stores have moved to another gen: runs cannot write here any
   * more, and readers learn the new gen.
   */
  def move(to: String): Unit = {
    val places = fields().keys.filter(_.startsWith(OperatorPrefix)).toSeq
    if (places.nonEmpty) {
      val pairs = places.flatMap(name => Seq(MovedPrefix + name.drop(OperatorPrefix.length), to))
      put(s"record that checkpoint $gen has moved", "", pairs)
    }
  }

  /** Returns whether no run was registered after this one. */
  def isNewest(runId: String): Boolean =
    lookup(runId).exists { run =>
      field("epoch").forall(Stored.number(s"look for runs after $runId", _) <= run.epoch)
    }

  /**
   * Registers a run, or raises its epoch above one that a fail-over left in a partition.
   *
   * @param above epoch to exceed, 0 for none
   * @param fields display fields of the query, such as its name
   */
  def register(
      runId: String,
      byDriver: Boolean,
      above: Long,
      fields: Map[String, String]): RegisteredRun = {
    val args =
      Seq(runId, if (byDriver) Driver else Executor, above.toString, UnusedTtlMs.toString) ++
        fields.toSeq.flatMap { case (name, value) => Seq(name, value) }
    val what = s"register run $runId"
    backend.script(what, Script.Register, Seq(query), args.map(Command.bytes)).map(text) match {
      case Seq("OK", epoch, source) =>
        RegisteredRun(runId, Stored.number(what, epoch), source == Driver)
      case Seq(PurgedReply) => throw purged(what)
      case _ =>
        throw new FencedException(
          s"$what: a newer run of the query is registered. This run is over.")
    }
  }

  /**
   * Confirms that the query is used, so that it stays, and lists it.
   *
   * @param keepMs 0, or the expiry of an ephemeral checkpoint
   */
  def confirm(listing: String, keepMs: Long): Unit = {
    val what = s"list checkpoint $gen"
    put(what, keepMs.toString, Nil)
    enter(what, gen, listing)
    try forgetSomeOfTheGone()
    catch {
      case e: RedisStateException =>
        log.info("{}: entries of expired checkpoints stay: {}", what: Any, e.getMessage: Any)
    }
  }

  /** Time of the server's clock, which processes of several machines can compare. */
  def nowMs: Long = backend.call("ask for the time", Seq(Command("TIME"))).head match {
    case Seq(seconds: AnyRef, micros: AnyRef) =>
      text(seconds).toLong * 1000 + text(micros).toLong / 1000
    case _ => throw new InternalException("the server did not answer TIME with a time")
  }

  /**
   * Notes that the driver of a run is alive; does nothing if Redis does not know the run any more.
   *
   * @param copied the version that the driver has just copied
   */
  def alive(runId: String, copied: Option[Long] = None): Unit = {
    val args = runId +: copied.map(_.toString).toSeq
    backend.script(
      s"report run $runId as alive",
      Script.Alive,
      Seq(query),
      args.map(Command.bytes))
    ()
  }

  /** Counts an error of a task; the count lives as long as the totals of instances. */
  def count(error: String, operator: Long, storeName: String): Unit = {
    backend.script(
      s"count an error of checkpoint $gen",
      Script.Count,
      Seq(Keys.totalsOf(prefix, gen)),
      Seq(s"$error:$operator:$storeName", TotalsTtlMs.toString).map(Command.bytes)
    )
    ()
  }

  /** Renews the keys of an ephemeral query; a purged query expires all the same. */
  def renew(keepMs: Long): Unit = {
    stay(s"renew checkpoint $gen", keepMs.toString, Nil)
    ()
  }

  /** Removes the expiry of the query, unless it was purged. */
  def keep(): Unit = {
    stay(s"keep checkpoint $gen", "0", Nil)
    ()
  }

  /** Sets fields of a query that was not purged. */
  private def put(what: String, keepMs: String, fields: Seq[String]): Unit =
    if (!stay(what, keepMs, fields)) throw purged(what)

  private def stay(what: String, keepMs: String, fields: Seq[String]): Boolean =
    backend.script(what, Script.Stay, Seq(query), (keepMs +: fields).map(Command.bytes))
      .map(text) == Seq("OK")

  /**
   * Adds an entry to the list of checkpoints, unless a purge removed the checkpoint. The purge
   * marks the query first, so a caller that reads the mark after its entry notices.
   */
  @tailrec
  private def enter(what: String, field: String, value: String): Unit = {
    val list = Keys.checkpoints(prefix)
    backend.call(what, Seq(Command("HSET", list, field, value)))
    if (isPurged) {
      backend.call(what, Seq(Command("HDEL", list, field)))
      if (isPurged) throw purged(what)
      // The checkpoint was recalled meanwhile, with the entry that was removed here.
      enter(what, field, value)
    }
  }

  private def isPurged: Boolean = field(PurgedField).nonEmpty

  private def purged(what: String) = Refusal.purged(what, gen)

  /**
   * Drops a few random list entries of expired ephemeral checkpoints, so that the list does not
   * grow with the number of queries that ever ran.
   */
  private def forgetSomeOfTheGone(): Unit = {
    val what = "clean up the list of checkpoints"
    val list = Keys.checkpoints(prefix)
    val probed = backend.call(what, Seq(Command("HRANDFIELD", list, ProbesMax.toString))).head
    val fields = probed match {
      case names: Seq[_] => names.map(text)
      case _ => Nil
    }
    val gens = fields.map(_.takeWhile(_ != ':')).distinct
    if (gens.nonEmpty) {
      val there = backend.call(what, gens.map(g => Command("EXISTS", Keys.query(prefix, g))))
      val gone = gens.zip(there).collect { case (g, n: java.lang.Long) if n == 0L => g }.toSet
      val dead = fields.filter(field => gone(field.takeWhile(_ != ':')))
      if (dead.nonEmpty) {
        val sizes = Keys.sizes(prefix)
        backend.call(
          what,
          Seq(Command("HDEL", list +: dead: _*), Command("HDEL", sizes +: gone.toSeq: _*)))
      }
    }
    ()
  }

  /**
   * Writes what readers need to look up keys of an operator by column names. The list of
   * checkpoints gets the number of partitions too, so that a reader opens them without a request
   * for the query first.
   */
  def putOperator(operator: Long, storeName: String, partitions: Int, json: String): Unit = {
    val what = s"describe operator $operator store $storeName"
    put(what, "", Seq(s"$OperatorPrefix$operator:$storeName", json))
    enter(what, s"$gen:$operator:$storeName", partitions.toString)
  }

  /**
   * Writes an operator like `putOperator`, unless a larger number of partitions is known; for tasks
   * that have seen only some of them.
   *
   * @param json its first field is `partitions`
   */
  def growOperator(operator: Long, storeName: String, partitions: Int, json: String): Unit = {
    val what = s"describe operator $operator store $storeName"
    val field = s"$OperatorPrefix$operator:$storeName"
    val rest = json.drop(json.indexOf(',') + 1)
    val args = Seq(field, partitions.toString, rest).map(Command.bytes)
    backend.script(what, Script.Describe, Seq(query), args).map(text) match {
      case Seq("OK", known) => enter(what, s"$gen:$operator:$storeName", known)
      case _ => throw purged(what)
    }
  }

  /** Notes that the marker file exists; called before anything else is written under the gen. */
  def noteMarker(): Unit = {
    val what = s"record the marker of checkpoint $gen"
    put(what, "", Seq(MarkerField, "1"))
  }

  /** Settings of the checkpoint's files, as JSON (docs/format.md, section 17). */
  def files: Option[String] = field(FilesName)

  /** Records the settings of the checkpoint's files. */
  def putFiles(json: String): Unit =
    put(s"record the folder of the files of checkpoint $gen", "", Seq(FilesName, json))

  /** Returns the files that have a segment of a partition. */
  def usedFiles(id: PartitionId): Seq[String] =
    backend.call(s"list the files of $id", Seq(Command("HGETALL", Keys.files(id)))).head match {
      case all: Seq[_] => all.map(text).grouped(2).collect {
          case Seq(file, row) if row.startsWith(UsedRow) && Place.isFileName(file) => file
        }.toSeq
      case _ => Nil
    }

  /**
   * Returns other checkpoints of the same folder, which was deleted and created again since then.
   */
  def othersOfFolder(pathHash: String): Seq[String] =
    backend.call("list checkpoints", Seq(Command("HGETALL", Keys.checkpoints(prefix)))).head match {
      case all: Seq[_] => all.map(text).grouped(2).collect {
          case Seq(other, entry)
              if other != gen && !other.contains(':') && entry.contains(s"\"$pathHash\"") =>
            other
        }.toSeq.sorted
      case _ => Nil
    }

  /** Returns a display field of the query. */
  def field(name: String): Option[String] = get(name).head

  /** Returns all fields of the query. */
  def fields(): Map[String, String] =
    backend.call(s"read registry of checkpoint $gen", Seq(Command("HGETALL", query))).head match {
      case all: Seq[_] => all.map(text).grouped(2).collect { case Seq(name, value) =>
          name -> value
        }.toMap
      case _ => Map.empty
    }

  private def get(names: String*): Seq[Option[String]] =
    backend.call(
      s"read registry of checkpoint $gen",
      Seq(Command("HMGET", query +: names: _*))).head match {
      case all: Seq[_] => all.map {
          case bytes: Array[Byte] => Some(new String(bytes, UTF_8))
          case _ => None
        }
      case _ => names.map(_ => None)
    }
}

object RunRegistry {
  private val log = LoggerFactory.getLogger(classOf[RunRegistry])
  private[protocol] val MarkerField = "marker"
  private val FilesName = "places"
  private val UsedRow = "u "
  private val OperatorPrefix = "op:"
  private val MovedPrefix = "moved:"
  private val PurgedField = "purged"
  private val PurgedReply = "PURGED"
  private val ProbesMax = 32
  private val Driver = "d"
  private val Executor = "x"

  /** Time after which a query without an acquired partition is forgotten. */
  private val UnusedTtlMs = 24L * 3600 * 1000

  /** Lifetime of the totals of an executor that has ended. */
  val TotalsTtlMs: Long = 3600L * 1000

  /**
   * Reports all instances of an executor in one pipeline: a new instance takes its place, an older
   * one is renewed unless another process has the place.
   *
   * @return for each instance whether it has its place
   */
  def reportInstances(
      backend: RedisBackend,
      reports: Seq[InstanceReport],
      ttlMs: Long): Seq[Boolean] =
    if (reports.isEmpty) Nil
    else {
      val commands = reports.map { report =>
        val key = Keys.instance(report.id)
        if (report.isNew) Command("SET", key, report.text, "PX", ttlMs.toString)
        else Script.Heartbeat.byText(Seq(key), Seq(report.text, ttlMs.toString).map(Command.bytes))
      }
      backend.call("report instances", commands ++ totalsOf(reports)).take(reports.size).map {
        case reply: Seq[_] => reply.headOption.exists(text(_) == "OK")
        case _ => true
      }
    }

  private def movedField(operator: Long, storeName: String) = s"$MovedPrefix$operator:$storeName"

  private def totalsOf(reports: Seq[InstanceReport]): Seq[Command] =
    reports.groupBy(report => Keys.totals(report.id)).toSeq.flatMap { case (key, ofCheckpoint) =>
      val fields = ofCheckpoint.flatMap(r =>
        Seq(s"${r.id.operator}:${r.id.partition}:${r.id.storeName}", r.totals))
      Seq(
        Command("HSET", key +: fields: _*),
        Command("PEXPIRE", key, TotalsTtlMs.toString))
    }

  private def text(reply: Any): String = reply match {
    case bytes: Array[Byte] => new String(bytes, UTF_8)
    case other => String.valueOf(other)
  }
}
