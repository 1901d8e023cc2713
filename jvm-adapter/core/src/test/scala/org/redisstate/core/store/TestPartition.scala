package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import redis.clients.jedis.Jedis

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.backend._
import org.redisstate.core.copy.CopySource
import org.redisstate.core.format.{BlockSigner, Family, FamilyKind, MultiValue, Vectors}
import org.redisstate.core.ids.{Keys, PartitionId}
import org.redisstate.core.local.{LayerSizes, RowIterator, RowValidator, Slice}
import org.redisstate.core.places.FileFolders
import org.redisstate.core.protocol.{
  CheckpointFormat,
  CommitLog,
  PartitionClient,
  ProtocolSettings,
  PublishedSegments,
  RunRegistry
}
import org.redisstate.core.protocol.names.VersionNames
import org.redisstate.core.store.resources.MemoryBudget

/**
 * One partition on a real server, and stores of several runs and executors on it.
 *
 * @param gen of the checkpoint
 * @param url how the stores find the server
 * @param between what stands between the stores and the server
 */
private[store] final class TestPartition(
    server: RedisServerProcess,
    versionsToRetain: Int = 100,
    clock: Clock = Clock.System,
    gen: String = TestPartition.newGen(),
    url: Option[String] = None,
    durability: Durability = Durability.None,
    deadlineMs: Long = 5000,
    socketTimeoutMs: Int = 5000,
    number: Int = 3,
    between: Transport => Transport = identity,
    val folders: Option[FileFolders] = None,
    val budget: MemoryBudget = new MemoryBudget(1L << 30)) {
  private val settings = TestConnection
    .settings(url.getOrElse(server.url), socketTimeoutMs, deadlineMs)
    .copy(durability = durability)
  val backend: RedisBackend = new RedisBackend(
    between(Transports.to(settings)),
    settings.deadlineMs,
    clock,
    () => false,
    durability = durability,
    waitMs = 200)
  val id: PartitionId = PartitionId("", gen, 0, number, "default")

  /** Client that inspects the server without the code under test. */
  val raw: Jedis = new Jedis("127.0.0.1", server.port)

  def registry: RunRegistry = new RunRegistry(backend, "", gen)

  /** Returns the same partition of another checkpoint on this server. */
  def ofGen(other: String): TestPartition =
    new TestPartition(server, versionsToRetain, gen = other, number = number, folders = folders)

  /** Steps of a writer without a store. */
  def client: PartitionClient = new PartitionClient(
    backend,
    id,
    ProtocolSettings(versionsToRetain, 0, CheckpointFormat.V1),
    registry,
    folders = folders)

  def names: VersionNames = new VersionNames(backend, "", gen)

  /** A store of a run, with nothing cached, as on a new executor. */
  def store(
      run: String,
      validator: RowValidator = RowValidator.None,
      format: CheckpointFormat = CheckpointFormat.V1,
      signer: Option[BlockSigner] = None,
      log: Option[CommitLog] = None,
      sizes: LayerSizes = LayerSizes.Default,
      ttlMs: Option[Long] = None,
      previewEveryMs: Option[Long] = None): PartitionVersions = {
    val settings = ProtocolSettings(versionsToRetain, 0, format, signer)
    val client = new PartitionClient(backend, id, settings, registry, log, folders)
    lazy val registered =
      registry.lookup(run).getOrElse(registry.register(run, byDriver = true, 0, Map.empty))
    new PartitionVersions(
      client,
      run,
      () => registered,
      TestPartition.Default,
      validator,
      budget,
      sizes = sizes,
      ttlMs = ttlMs,
      previewEveryMs = previewEveryMs)
  }

  /** The preview as the manifest has it; None without one, or behind an abort. */
  def preview: Option[TestPreview] = TestPreview.of(this)

  /** Faults of published segments, one line each. */
  def damaged: Seq[String] = PublishedSegments.damaged(backend, id)

  def copySource(signer: Option[BlockSigner]): CopySource =
    new CopySource(backend, "", gen, signer, folders)

  /** Names behind `P:` of all keys of the partition. */
  def keys: Set[String] = {
    val base = Keys.meta(id).dropRight(1)
    raw.keys("*").asScala.filter(_.startsWith(base)).map(_.drop(base.length)).toSet
  }

  /** Makes another partition hold what this one does: blocks know their segment, not their partition. */
  def copyTo(other: TestPartition): Unit = keys.foreach { name =>
    raw.copy(Keys.meta(id).dropRight(1) + name, Keys.meta(other.id).dropRight(1) + name, true)
  }

  /** A field of the manifest; null where it is not there. */
  def meta(field: String): String = raw.hget(Keys.meta(id), field)

  def plant(field: String, ident: String, entry: String, fields: Map[String, Array[Byte]]): Unit = {
    raw.hset(Keys.meta(id), field, entry)
    val key = Keys.segment(id, ident).getBytes(UTF_8)
    fields.foreach { case (name, block) => raw.hset(key, name.getBytes(UTF_8), block) }
  }

  def plantHead(version: Long, uid: String): Unit = {
    val head = Map(
      "f" -> "1",
      "l" -> version.toString,
      "lu" -> uid,
      "o" -> version.toString,
      "ou" -> uid,
      "n" -> "100",
      "w" -> "0",
      "e" -> "1",
      "r" -> "earlier")
    raw.hset(Keys.meta(id), head.asJava)
    ()
  }

  def close(): Unit = {
    raw.close()
    backend.close()
  }
}

private[store] object TestPartition {
  private val count = new AtomicInteger

  def newGen(): String = f"${count.incrementAndGet()}%032x"

  private val Schema = """{"type":"struct","fields":[]}"""

  val Default: Family = family(0, "default", FamilyKind.Plain)
  val Prefixed: Family = family(1, "prefixed", FamilyKind.Prefix)
  val Lists: Family = family(2, "lists", FamilyKind.Plain).copy(multiValue = true)
  val Ordered: Family = family(3, "ordered", FamilyKind.Range)

  private def family(id: Int, name: String, kind: FamilyKind): Family = Family(
    id,
    name,
    kind,
    if (kind == FamilyKind.Plain) Nil else Seq(1),
    Schema,
    Schema,
    multiValue = false,
    internal = false)

  def key(family: Int, text: String): Array[Byte] =
    Array[Byte](0, family.toByte) ++ text.getBytes(UTF_8)

  def prefixed(prefix: String, text: String): Array[Byte] =
    Array[Byte](0, 1, prefix.length.toByte, 0, 0, 0) ++ prefix.getBytes(UTF_8) ++ text.getBytes(
      UTF_8)

  def put(session: WriteSession, key: Array[Byte], value: String): Unit = {
    val bytes = value.getBytes(UTF_8)
    session.put(key, key.length, bytes, bytes.length)
  }

  def append(session: WriteSession, key: Array[Byte], value: String): Unit = {
    val bytes = MultiValue.encode(Seq(value.getBytes(UTF_8)))
    session.append(key, key.length, bytes, bytes.length)
  }

  def text(slice: Slice): String = new String(slice.array, slice.offset, slice.length, UTF_8)

  def rows(iterator: RowIterator): Seq[(String, String)] = {
    val key, value = new Slice
    val found = Seq.newBuilder[(String, String)]
    while (iterator.next(key, value)) {
      found += Vectors.hex(key.array, key.offset, key.length) ->
        Vectors.hex(value.array, value.offset, value.length)
    }
    found.result()
  }
}
