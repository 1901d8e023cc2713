package org.redisstate.core.model

import java.nio.charset.StandardCharsets.UTF_8
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.Random

import org.redisstate.core.backend._
import org.redisstate.core.errors._
import org.redisstate.core.format._
import org.redisstate.core.ids._
import org.redisstate.core.protocol._
import org.redisstate.core.protocol.CheckpointFormat.V2

/**
 * One schedule: a driver that runs batches with one or two attempts each, rewinds and restarts;
 * zombies of earlier runs; readers that nobody knows; maintenance; fail-over to an older copy; keys
 * that expire. The model is a map from attempt to content.
 *
 * @param formats the first run has the first of them; a restart may go over to the next, for good
 */
final class Schedule(
    random: Random,
    server: Transport,
    gen: String,
    counters: Scheduler.Counters,
    formats: Seq[CheckpointFormat]) {
  import Schedule._

  private val id = PartitionId("", gen, 0, 0, "default")

  /** True if the driver supplies the uid of every version that it requests. */
  private val byUid = formats.head == V2
  private val scheduler = new Scheduler(random, server, faults = true, counters.add)
  private val plain = new RedisBackend(server, 10000, Clock.System, () => false)

  /** Rows of each attempt, recorded before they are sent; every load must return exactly these. */
  private val contents = new ConcurrentHashMap[String, Content]
  @volatile private var runId = newRun(byDriver = true)
  @volatile private var format = formats.head
  @volatile private var batch = 0L

  /**
   * Uids of each version that attempts reported to the driver's run. The driver may log the batch
   * of such a version with any of its uids.
   */
  @volatile private var confirmed = Map.empty[Long, Set[String]]

  /** The driver's commit log: the uid of each version, where its run had format 2. */
  private var log = Map.empty[Long, Option[String]]

  /** Every pin that was ever in the log: a zombie may still continue from any of them. */
  private val everLogged = scala.collection.mutable.ArrayBuffer.empty[Pin]

  /** Every attempt that was ever confirmed. */
  private val pins = new java.util.concurrent.CopyOnWriteArrayList[Pin]
  private var failedOver = false
  private var copy: Option[Seq[(Array[Byte], Array[Byte])]] = None
  private val problems = new java.util.concurrent.ConcurrentLinkedQueue[String]

  def run(): Seq[String] = {
    for (_ <- 0 until Steps if problems.isEmpty) {
      if (scheduler.running < ActorsMax && random.nextInt(4) == 0) startSomething()
      random.nextInt(150) match {
        case 0 => copy = Some(dump())
        case 1 => copy.foreach(failOver)
        case 2 => expire()
        case _ => ()
      }
      scheduler.next().foreach(judge)
    }
    while (scheduler.running > 0) scheduler.next().foreach(judge)
    scheduler.flush()
    if (problems.isEmpty) settle()
    cleanUp()
    problems.toArray(Array.empty[String]).toSeq
  }

  private def startSomething(): Unit = random.nextInt(12) match {
    case 0 if batch > 0 => rewind()
    case 1 => reader()
    case 2 => maintainer()
    case 3 if everLogged.nonEmpty && random.nextBoolean() =>
      // Of any timeline, so it may be an abandoned one.
      val pin = everLogged(random.nextInt(everLogged.size))
      startAttempt(newRun(byDriver = false), pin.version, Some(pin.uid), zombie = true)
    case 3 =>
      val version = math.max(0, batch - random.nextInt(3))
      startAttempt(newRun(byDriver = false), version, log.get(version).flatten, zombie = true)
    case 6 =>
      // A second start beside the driver, which may have looked at the log a batch ago; it logs nothing.
      counters.add("second starts")
      val version = math.max(0, batch - random.nextInt(2))
      startAttempt(newRun(byDriver = true), version, log.get(version).flatten, zombie = true)
    case 4 if !pins.isEmpty => readerOf(pins.get(random.nextInt(pins.size)))
    case 5 => confirmed.get(batch + 1).foreach(uids => readerOf(Pin(batch + 1, oneOf(uids))))
    case _ => nextBatch()
  }

  private def oneOf(uids: Set[String]): String = uids.toSeq.sorted.apply(random.nextInt(uids.size))

  private def nextBatch(): Unit = {
    confirmed.get(batch + 1).foreach { uids =>
      batch += 1
      log = log.updated(batch, if (format == V2) Some(oneOf(uids)) else None)
      if (format == V2 && uids.size > 1) counters.add("choices")
      log(batch).foreach(uid => everLogged += Pin(batch, uid))
    }
    val uid = log.get(batch).flatten
    startAttempt(runId, batch, uid, zombie = false)
    if (random.nextInt(4) == 0) startAttempt(runId, batch, uid, zombie = false)
  }

  /** A restart, from the newest batch or an older one; attempts of the earlier run go on as zombies. */
  private def rewind(): Unit = {
    counters.add("rewinds")
    batch = math.max(0, batch - random.nextInt(4))
    confirmed = Map.empty
    log = log.filter(_._1 <= batch)
    if (format != formats.last && random.nextInt(3) == 0) {
      counters.add("switches")
      format = formats.last
    }
    runId = newRun(byDriver = true)
  }

  private def startAttempt(
      run: String,
      version: Long,
      wanted: Option[String],
      zombie: Boolean): Unit = {
    if (zombie) counters.add("zombie attempts")
    val changes = Seq.fill(random.nextInt(4))((
      s"k${random.nextInt(6)}",
      if (random.nextInt(4) == 0) None else Some(s"${random.nextInt(1000)}")))
    val stageFirst = random.nextBoolean()
    val giveUp = random.nextInt(10) == 0
    // A zombie may be of the time before a switch.
    val format = if (zombie && wanted.isEmpty) formats.head else this.format
    def isNow = !zombie && run == runId && version == batch
    start(s"writer $version", isNow) { transport =>
      val (client, registry) = connect(transport, format)
      val opened = client.open(run, Some(version), wanted, Nil)
      val before = load(client, opened)
      compare(opened, before)
      if (wanted.exists(_ != opened.pin.uid)) problems.add(s"$wanted was opened as ${opened.pin}")
      val holder = registry.lookup(run).getOrElse(registry.register(
        run,
        byDriver = false,
        above = 0,
        Map.empty))
      if (!opened.held) client.acquire(holder, opened.pin)
      val uid = PartitionUid()
      val after = changes.foldLeft(before) { case (c, (k, v)) => v.fold(c - k)(c.updated(k, _)) }
      contents.put(uid, after)
      val (fields, entry) =
        encode(Segment.deltaIdent(version + 1, uid), opened.pin.uid, changes.toMap, after.size)
      val ident = Segment.deltaIdent(version + 1, uid)
      if (stageFirst) client.segments.stage(ident, ident, fields)
      if (giveUp) client.abort(ident)
      else {
        client.commit(
          holder,
          opened.pin,
          Segment(isSnapshot = false, version + 1, uid, entry),
          if (stageFirst) Nil else fields,
          fields)
        counters.add("commits")
        pins.add(Pin(version + 1, uid))
        if (run == runId)
          confirmed =
            confirmed.updated(version + 1, confirmed.getOrElse(version + 1, Set.empty) + uid)
        // In format 1 a sibling may have taken the attempt out, and a fail-over in any; then the
        // copy takes its place.
        if (format == V2 && !failedOver && random.nextInt(4) == 0) {
          val other = changes.toMap + ("copy" -> Some(uid))
          val (copied, copiedEntry) = encode(ident, opened.pin.uid, other, after.size + 1)
          val delta = Segment(isSnapshot = false, version + 1, uid, copiedEntry)
          commitCopy(uid)(client.commit(holder, opened.pin, delta, copied, copied))
        }
      }
    }
  }

  /**
   * A copy of the process, as a virtual machine that was copied is, goes on with the attempt in its
   * own way.
   */
  private def commitCopy(uid: String)(commit: => Unit): Unit =
    try {
      commit
      if (failedOver) contents.put(uid, contents.get(uid).updated("copy", uid))
      else problems.add(s"$uid was acknowledged twice, with other rows")
    } catch {
      case e: FencedException =>
        counters.add("copies refused")
        throw e
    }

  private def reader(): Unit = {
    val version = if (random.nextBoolean()) None else Some(random.nextInt(batch.toInt + 2).toLong)
    scheduler.start("reader") { transport =>
      val (client, _) = connect(transport, formats.head)
      val opened = client.open("", version, None, Nil)
      compare(opened, load(client, opened))
    }
  }

  /** Any attempt that was ever committed reads as what it wrote, or not at all. */
  private def readerOf(pin: Pin): Unit = {
    def isNext = pin.version == batch + 1 && confirmed.get(pin.version).exists(_(pin.uid))
    start(s"reader of $pin", isNext) { transport =>
      val (client, _) = connect(transport, formats.head)
      val opened = client.open("", Some(pin.version), Some(pin.uid), Nil)
      if (opened.pin != pin) problems.add(s"$pin was opened as ${opened.pin}")
      compare(opened, load(client, opened))
      counters.add("attempts read")
    }
  }

  /**
   * @param needed whether the driver may go on from the version: by its uid it is there, unless the
   * server lost it
   */
  private def start(name: String, needed: => Boolean)(body: Transport => Unit): Unit =
    scheduler.start(name) { transport =>
      try body(transport)
      catch {
        case e: StateLostException =>
          if (byUid && needed && !failedOver) problems.add(s"$name: ${e.getMessage}")
          throw e
      }
    }

  private def maintainer(): Unit = scheduler.start("maintainer") { transport =>
    val (client, _) = connect(transport, formats.head)
    val opened = client.open("", None, None, Nil)
    if (opened.pin.version > 0 && !opened.segments.headOption.exists(_.isSnapshot)) {
      val rows = load(client, opened)
      compare(opened, rows)
      val writer = PartitionUid()
      val ident = Segment.snapshotIdent(opened.pin.version, writer)
      val (fields, entry) = encode(
        ident,
        writer,
        rows.map { case (k, v) => k -> Option(v) },
        rows.size)
      client.snapshots.stage(ident, fields)
      if (client.snapshots.add(Segment(
          isSnapshot = true,
          opened.pin.version,
          opened.pin.uid,
          entry))) counters.add("snapshots")
    }
    client.retain()
    counters.add("retentions")
  }

  /** Attempts may lose; they may only lose in the ways that the protocol names. */
  private def judge(failure: Throwable): Unit = failure match {
    case e: RedisStateException =>
      counters.add(e.kind)
      e match {
        case _: FencedException | _: VersionExpiredException | _: UnavailableException | _: OutcomeUnknownException =>
          ()
        case _: StateLostException => ()
        case other => problems.add(s"unexpected ${other.getMessage}")
      }
    case e => problems.add(s"$e at ${e.getStackTrace.take(3).mkString(" < ")}")
  }

  /**
   * With nothing else running, a fresh run goes on from what the server confirms, and nothing was
   * left behind.
   */
  private def settle(): Unit = {
    val registry = new RunRegistry(plain, "", gen)
    val client = new PartitionClient(plain, id, settings(format), registry)
    val latest = client.open("", None, None, Nil)
    compare(latest, load(client, latest))
    if (byUid && !failedOver) checkLogged(client)
    val run = registry.register(newId(), byDriver = true, above = 0, Map.empty)
    val opened = client.open(run.id, Some(latest.pin.version), None, Nil)
    if (opened.pin != latest.pin)
      problems.add(s"version ${latest.pin} reads as ${opened.pin} without anybody writing")
    client.acquire(run, opened.pin)
    val uid = PartitionUid()
    val content = load(client, opened).updated("last", "1")
    contents.put(uid, content)
    val (fields, entry) =
      encode(
        Segment.deltaIdent(opened.pin.version + 1, uid),
        opened.pin.uid,
        Map("last" -> Some("1")),
        content.size)
    val delta = Segment(isSnapshot = false, opened.pin.version + 1, uid, entry)
    client.commit(run, opened.pin, delta, fields, fields)
    val reopened = client.open(run.id, Some(opened.pin.version + 1), None, Nil)
    compare(reopened, load(client, reopened))
    client.retain()
    PublishedSegments.damaged(plain, id).foreach(d => problems.add(s"after maintenance $d"))
    orphans().foreach(key => problems.add(s"orphan without expiry: $key"))
  }

  /**
   * Checks all versions from which the driver may continue. They are the logged versions not below
   * the floor, and each attempt of the next version.
   */
  private def checkLogged(client: PartitionClient): Unit = {
    val floor = client.open("", None, None, Nil).floor
    val logged = log.collect { case (version, Some(uid)) if version >= floor => Pin(version, uid) }
    val next = confirmed.getOrElse(batch + 1, Set.empty).map(Pin(batch + 1, _))
    (logged ++ next).foreach { pin =>
      val opened = client.reopen(pin)
      compare(opened, load(client, opened))
      counters.add("logged versions read")
    }
  }

  private def compare(opened: Opened, found: Content): Unit = {
    counters.add("loads compared")
    val wanted =
      if (opened.pin == Pin.Empty) Map.empty[String, String] else contents.get(opened.pin.uid)
    if (found != wanted)
      problems.add(s"version ${opened.pin} reads as $found, the model has $wanted")
  }

  private def load(client: PartitionClient, first: Opened): Content = {
    var opened = first
    var tries = 0
    while (true) {
      try return opened.segments.reverseIterator.foldLeft(Map.empty: Content)((c, s) =>
          apply(client, c, s))
      catch {
        case gone: SegmentGone =>
          val again = client.reopen(first.pin)
          tries += 1
          if (again.segments.contains(gone.segment) || tries > 5) {
            if (!failedOver) problems.add(s"${gone.segment.ident} is in the manifest but not there")
            throw new StateLostException("blocks are missing")
          }
          opened = again
      }
    }
    throw new IllegalStateException
  }

  private def apply(client: PartitionClient, before: Content, segment: Segment): Content = {
    val base = if (segment.isSnapshot || segment.entry.complete) Map.empty: Content else before
    if (segment.entry.blocks == 0) base
    else {
      val block = client.segments.fetch(segment, Seq("0")).head
      if (block == null) base
      else {
        val rows = RowBlock.parse(Block.decode(segment.ident, "0", block))
        (0 until rows.count).foldLeft(base) { (c, i) =>
          val key = new String(rows.bytes, rows.keyOffset(i) + 2, rows.keyLength(i) - 2, UTF_8)
          if (rows.isRemoved(i)) c - key
          else
            c.updated(key, new String(rows.bytes, rows.valueOffset(i), rows.valueLength(i), UTF_8))
        }
      }
    }
  }

  private def encode(
      ident: String,
      ref: String,
      rows: Map[String, Option[String]],
      live: Int): (Seq[EncodedField], Entry) = {
    val block = new RowBlock.Builder(256)
    rows.toSeq.sortBy(_._1).foreach { case (k, v) =>
      val key = s"\u0000\u0000$k".getBytes(UTF_8)
      v match {
        case Some(text) => block.add(key, 0, key.length, text.getBytes(UTF_8), 0, text.length)
        case None => block.addRemoved(key, 0, key.length)
      }
    }
    val writer = new SegmentWriter(ident, 1)
    writer.add(0, block.result())
    val entry = writer.finish(ref, live.toLong, None, Nil)
    (writer.allFields, entry)
  }

  private def connect(
      transport: Transport,
      format: CheckpointFormat): (PartitionClient, RunRegistry) = {
    val backend = new RedisBackend(transport, 40, new StepClock, () => false)
    val registry = new RunRegistry(backend, "", gen)
    val commits: CommitLog = version => version < batch
    (new PartitionClient(backend, id, settings(format), registry, Some(commits)), registry)
  }

  private def settings(format: CheckpointFormat): ProtocolSettings =
    ProtocolSettings(versionsToRetain = 1, keepMs = 0, format)

  private def newRun(byDriver: Boolean): String = {
    val run = newId()
    if (byDriver)
      new RunRegistry(plain, "", gen).register(run, byDriver = true, above = 0, Map.empty)
    run
  }

  private def newId(): String = new UUID(random.nextLong(), random.nextLong()).toString

  private def keys(): Seq[Array[Byte]] = {
    var cursor = "0"
    var found = Seq.empty[Array[Byte]]
    do {
      server.exchange(
        Seq(Command("SCAN", cursor, "MATCH", s"*$gen*", "COUNT", "1000"))).head match {
        case Seq(next: Array[Byte], page: Seq[_]) =>
          cursor = new String(next, UTF_8)
          found ++= page.asInstanceOf[Seq[Array[Byte]]]
        case other => throw new IllegalStateException(String.valueOf(other))
      }
    } while (cursor != "0")
    found
  }

  private def dump(): Seq[(Array[Byte], Array[Byte])] =
    keys().map(k =>
      k -> server.exchange(Seq(Command("DUMP", Array(k)))).head.asInstanceOf[Array[Byte]])

  /** The server comes back with an older copy of everything; the registry included. */
  private def failOver(old: Seq[(Array[Byte], Array[Byte])]): Unit = {
    counters.add("fail-overs")
    // Runs that register in one millisecond have epochs that are ahead of the clock; no fail-over
    // is as fast as that.
    Thread.sleep(FailOverMs)
    failedOver = true
    keys().foreach(k => server.exchange(Seq(Command("UNLINK", Array(k)))))
    old.foreach { case (k, v) =>
      server.exchange(Seq(Command("RESTORE", Array(k, Command.bytes("0"), v))))
    }
    // With uids the driver goes on from its log: what is not there is said so, what is there is right.
    if (byUid) { if (random.nextBoolean()) rewind() }
    else {
      rewind()
      batch = 0
      confirmed = Map.empty
      log = Map.empty
    }
  }

  /** A key that has an expiry reaches it. */
  private def expire(): Unit = {
    val mortal = keys().filter(k => ttl(k) > 0 && !new String(k, UTF_8).endsWith("}:q"))
    if (mortal.nonEmpty) {
      counters.add("expiries")
      server.exchange(Seq(Command("UNLINK", Array(mortal(random.nextInt(mortal.size))))))
    }
  }

  private def orphans(): Seq[String] = {
    val meta =
      server.exchange(Seq(Command("HGETALL", Keys.meta(id)))).head.asInstanceOf[Seq[Array[Byte]]]
    val named = meta.map(new String(_, UTF_8)).grouped(2).collect {
      case Seq(field, entry) if field.startsWith("d:") || field.startsWith("s:") =>
        Keys.segment(id, Segment.parse(field, entry).ident)
    }.toSet
    keys().filter(ttl(_) < 0).map(new String(_, UTF_8)).filter(k =>
      k.contains("}:d:") || k.contains("}:s:")).filterNot(named)
      .filterNot(_ => failedOver)
  }

  private def ttl(key: Array[Byte]): Long =
    server.exchange(Seq(Command("PTTL", Array(key)))).head.asInstanceOf[java.lang.Long].longValue

  private def cleanUp(): Unit =
    keys().foreach(k => server.exchange(Seq(Command("UNLINK", Array(k)))))
}

object Schedule {
  type Content = Map[String, String]
  private val Steps = 120
  private val ActorsMax = 4
  private val FailOverMs = 10L

  private object PartitionUid { def apply(): String = UUID.randomUUID().toString.replace("-", "") }

  /**
   * Each look at the clock is a millisecond: deadlines come after so many tries, two looks each,
   * not after waiting.
   */
  private final class StepClock extends Clock {
    private var now = 0L
    override def nowMs: Long = { now += 1; now }
    override def sleep(ms: Long): Unit = ()
  }
}
