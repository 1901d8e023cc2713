package org.redisstate.core.store

import org.jetbrains.lincheck.datastructures.Operation
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.local.{Room, RowValidator}

/** What two threads of an executor do at once, in every order of their steps that Lincheck tries. */
class InterleavingSuite extends AnyFunSuite with BeforeAndAfterAll {
  import InterleavingSuite._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  test("the last two chunks of a snapshot may come at once") {
    snapshot = new RecordedSnapshot(server)
    try Interleavings.check(classOf[TwoChunks], perThread = 1, scenarios = 1)
    finally snapshot.close()
  }
}

object InterleavingSuite {

  /** Lincheck makes the classes of operations itself: they find here what they stand on. */
  private var snapshot: RecordedSnapshot = _

  /** A snapshot of two chunks, one of them of an ordered family. */
  final class TwoChunks {
    private val base =
      new SegmentLoader(snapshot.client, RowValidator.None, new StoreCounters, Room.Unbounded)
        .base(snapshot.head)

    @Operation(nonParallelGroup = "buckets")
    def buckets(): Boolean = base.loadBuckets(() => false)

    @Operation(nonParallelGroup = "ordered")
    def ordered(): Int = {
      val key = TestPartition.key(3, "b")
      base.rowsFor(0, key, 0, key.length).count
    }
  }
}
