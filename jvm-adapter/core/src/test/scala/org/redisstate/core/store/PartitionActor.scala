package org.redisstate.core.store

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Paths

import org.redisstate.core.TestConnection
import org.redisstate.core.backend._
import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.{Family, FamilyKind}
import org.redisstate.core.ids.PartitionId
import org.redisstate.core.local.{RowIterator, RowValidator, Slice}
import org.redisstate.core.places.{FileFolders, LocalFiles}
import org.redisstate.core.protocol.{
  CheckpointFormat,
  DeletionChecks,
  FilePolicy,
  PartitionClient,
  ProtocolSettings,
  RunRegistry
}
import org.redisstate.core.store.resources.MemoryBudget

/**
 * One of the two actors of `tests/interop/test_two_actors.py`: does to a partition of a Python store
 * what it is told, one command a line, and answers each with one line. Bytes are hexadecimal, `-`
 * stands for none.
 *
 * Arguments: URL, gen, schema of the family, whether its values are lists, and a folder of files.
 */
object PartitionActor {
  def main(args: Array[String]): Unit = {
    val (url, gen, schema, lists) = (args(0), args(1), args(2), args(3) == "true")
    val settings = TestConnection.settings(url)
    val backend =
      new RedisBackend(
        Transports.to(settings),
        settings.deadlineMs,
        Clock.System,
        () => false)
    val family = Family(
      0,
      "default",
      FamilyKind.Range,
      Seq(0),
      schema,
      schema,
      multiValue = lists,
      internal = false)
    val folders = args.lift(4).map(folder => new LocalFiles(Paths.get(folder)))
    val actor =
      new PartitionActor(backend, PartitionId("", gen, 0, 0, "default"), family, folders)
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    Iterator.continually(in.readLine()).takeWhile(_ != null).foreach { line =>
      println(actor.answer(line.split(' ').toSeq))
      System.out.flush()
    }
    backend.close()
  }

  private val GraceMs = 3600000L

  /** A store of Python has no log; the test is the person that sweeps. */
  private object NoLog extends DeletionChecks {
    override def ownsFolder: Boolean = true
    override def newestBatch(): Either[String, Long] = Right(0)
    override def copied(files: Seq[String]): Set[String] = Set.empty
  }
}

final private class PartitionActor(
    backend: RedisBackend,
    id: PartitionId,
    family: Family,
    folders: Option[FileFolders]) {
  private val budget = new MemoryBudget(1L << 30)
  private val registry = new RunRegistry(backend, "", id.gen)
  private var stores = Map.empty[String, PartitionVersions]
  private var session: WriteSession = _
  private var current: PartitionVersions = _

  def answer(words: Seq[String]): String =
    try run(words)
    catch { case e: RedisStateException => s"error ${e.getMessage.replace('\n', ' ')}" }

  private def run(words: Seq[String]): String = words match {
    case Seq("open", run, version) =>
      current = stores.getOrElse(run, store(run))
      stores += run -> current
      session = current.open(version.toLong).write()
      s"ok ${session.numKeys}"
    case Seq("forget") =>
      stores.values.foreach(_.close())
      stores = Map.empty
      "ok"
    case Seq("put", key, value) =>
      val (k, v) = (bytes(key), bytes(value))
      session.put(k, k.length, v, v.length)
      "ok"
    case Seq("append", key, elements) =>
      val (k, v) = (bytes(key), bytes(elements))
      session.append(k, k.length, v, v.length)
      "ok"
    case Seq("remove", key) =>
      val k = bytes(key)
      session.remove(k, k.length)
      "ok"
    case Seq("clear", from, to) =>
      session.deleteRange(family.id, side(from), side(to))
      "ok"
    case Seq("get", key) =>
      val (k, out) = (bytes(key), new Slice)
      if (session.get(k, k.length, out)) s"ok ${hex(out)}" else "ok -"
    case Seq("scan", from, to) =>
      s"ok ${rows(session.rangeScan(family.id, side(from), side(to)))}"
    case Seq("commit") => s"ok ${session.commit().version}"
    case Seq("abort") =>
      session.abort()
      "ok"
    case Seq("maintain") =>
      current.requestSnapshot()
      current.snapshotIfDue()
      current.retain()
      "ok"
    case Seq("move") => s"ok ${client().files.moveHistory().segments}"
    case Seq("sweep") =>
      val policy = FilePolicy(PartitionActor.GraceMs, deletes = true, PartitionActor.NoLog)
      s"ok ${client().files.lookAfter(policy, sweeps = true).deleted}"
    case other => s"error unknown command ${other.headOption.getOrElse("")}"
  }

  private def store(run: String): PartitionVersions = {
    lazy val registered =
      registry.lookup(run).getOrElse(registry.register(run, byDriver = true, 0, Map.empty))
    new PartitionVersions(client(), run, () => registered, family, RowValidator.None, budget)
  }

  private def client() = new PartitionClient(
    backend,
    id,
    ProtocolSettings(100, 0, CheckpointFormat.V1),
    registry,
    folders = folders)

  private def rows(found: RowIterator): String = {
    val (key, value) = (new Slice, new Slice)
    val all = Iterator.continually(found.next(key, value)).takeWhile(identity)
    all.map(_ => s"${hex(key)}=${hex(value)}").mkString(",")
  }

  private def side(text: String): Option[Array[Byte]] =
    Option.when(text != "-")(bytes(text))

  private def bytes(text: String): Array[Byte] =
    if (text == "empty") Array.emptyByteArray
    else text.grouped(2).map(Integer.parseInt(_, 16).toByte).toArray

  private def hex(slice: Slice): String =
    if (slice.length == 0) "empty"
    else
      slice.array
        .slice(slice.offset, slice.offset + slice.length)
        .map(b => f"${b & 0xff}%02x")
        .mkString
}
