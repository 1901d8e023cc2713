package org.redisstate.core.store

import org.jetbrains.lincheck.datastructures.{Operation, Validate}
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.{Entry, RowBlock}
import org.redisstate.core.ids.Pin
import org.redisstate.core.local.{Base, BucketSource, Content, RowValidator}
import org.redisstate.core.local.blocks.Room
import org.redisstate.core.protocol.PartitionClient
import org.redisstate.core.store.loading.{SegmentChecks, SegmentHead, SegmentLoader}
import org.redisstate.core.store.resources.{MemoryBudget, StoreCounters, StoreRoom}

/** Concurrent actions of two executor threads, in every order of steps that Lincheck tries. */
class InterleavingSuite extends AnyFunSuite with BeforeAndAfterAll {
  import InterleavingSuite._
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  test("the last two fields of a snapshot may come at once") {
    val p = new TestPartition(server)
    try {
      val store = p.store("a")
      val session = store.open(0).write()
      session.defineFamily(Default)
      session.defineFamily(Ordered)
      put(session, key(0, "a"), "1")
      put(session, key(3, "b"), "2")
      store.addSnapshot(session.commit())
      val segment = store.client.open("", Some(1), None, Nil).segments.head
      val loader =
        new SegmentLoader(
          store.client.segments,
          RowValidator.None,
          new StoreCounters,
          Room.Unbounded)
      head = loader.heads(Seq(segment)).head
      fields = Seq("0", "3/0").zip(store.client.segments.fetch(segment, Seq("0", "3/0")))
      Interleavings.check(classOf[LastFields], perThread = 1, scenarios = 1)
    } finally p.close()
  }

  test("the rows of a base are there whoever else reads, compresses or forgets them") {
    Interleavings.check(classOf[Buckets], perThread = 2, scenarios = 2)
  }

  test("the budget's account is true whoever reads, commits, makes room or closes") {
    val p = new TestPartition(server)
    try {
      client = p.store("a").client
      Interleavings.check(classOf[Accounts], perThread = 2, scenarios = 2)
    } finally p.close()
  }

  test("a write set is committed or given up") {
    Interleavings.check(classOf[Ends], perThread = 2, scenarios = 2)
  }
}

object InterleavingSuite {

  /** Lincheck makes the classes of operations itself: they find here what they stand on. */
  private var head: SegmentHead = _
  private var fields: Seq[(String, Array[Byte])] = _
  private var client: PartitionClient = _

  /** A snapshot with a row in its only bucket, and one in an ordered family. */
  final class LastFields {
    private val checks = new SegmentChecks(head)

    @Operation(nonParallelGroup = "bucket")
    def bucket(): Option[String] = came(0)

    @Operation(nonParallelGroup = "ordered")
    def ordered(): Option[String] = came(1)

    private def came(i: Int): Option[String] = checks.came(fields(i)._1, fields(i)._2)
  }

  private val block: RowBlock = {
    val rows = new RowBlock.Builder(64)
    val key = TestPartition.key(0, "a")
    rows.add(key, 0, key.length, key, 0, key.length)
    rows.result()
  }

  /** Two buckets, which are read together. */
  final class Buckets {
    private val source: BucketSource = (from, until) => Array.fill(until - from)(block)
    private val base = Base.remote(2, source)

    @Operation
    def read(): Int = base.bucket(1).count

    @Operation
    def readAll(): Int = {
      val bucketOf = base.pass()
      bucketOf(0).count + bucketOf(1).count
    }

    @Operation
    def load(): Boolean = base.loadAll(() => false)

    @Operation
    def forget(): Unit = {
      base.compress(Long.MaxValue, everything = true)
      base.drop(Long.MaxValue)
      ()
    }

    /** Checks at the end that only existing rows are counted. */
    @Validate
    def countsRight(): Unit = {
      forget()
      assert(base.memoryBytes == Base.remote(2, source).memoryBytes)
    }
  }

  /** A store whose two buckets do not fit into its memory together. Nothing of it reaches the server. */
  final class Accounts {
    private val source: BucketSource = (from, until) => Array.fill(until - from)(block)
    private val budget = new MemoryBudget(block.memoryBytes + 64)
    private val store = new PartitionVersions(
      client,
      "run",
      () => throw new IllegalStateException,
      TestPartition.Default,
      RowValidator.None,
      budget)
    private val room = new StoreRoom(budget, store.counters, () => store.cache.recount())
    private val base = Base.remote(2, source, room = room)
    private val first = version(1, new Content(base, Nil))
    install(2)

    private def version(number: Long, content: Content): LocalVersion =
      new LocalVersion(
        Pin(number, s"uid$number"),
        LiveRows.None,
        FamilyTable.Empty,
        content,
        History.Empty,
        _ => content)

    private def install(number: Long): Unit = {
      val entry = Entry(s"d:$number", 0, 0, 0, 0, 0, 0, complete = false, header = false)
      store.install(first, Pin(number, s"uid$number"), entry, FamilyTable.Empty, Nil)
    }

    @Operation
    def read(): Int = base.bucket(0).count

    @Operation
    def readOther(): Int = base.bucket(1).count

    @Operation
    def commit(): Unit = install(3)

    @Operation
    def makeRoom(): Unit = budget.check()

    @Operation
    def close(): Unit = store.close()

    @Validate
    def countsRight(): Unit = assert(budget.usedBytes == store.localBytes)
  }

  /** Ends of a write set, which come from its task and from who gives it up. */
  final class Ends {
    private val cycle = new LifeCycle

    @Operation
    def begin(): Boolean = cycle.follow(LifeCycle.BeginCommit)

    @Operation
    def end(): Boolean = cycle.follow(LifeCycle.EndCommit)

    @Operation
    def abort(): Boolean = cycle.follow(LifeCycle.Abort)

    @Operation
    def isCommitted: Boolean = cycle.is(LifeCycle.Committed)
  }
}
