package org.redisstate.core.backend

import java.util.concurrent.{ConcurrentLinkedQueue, CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

/** Background work in lanes. */
class LanesSuite extends AnyFunSuite {

  test("a lane keeps its order, and waits for no other") {
    val lanes = new Lanes
    val (gate, end) = (new CountDownLatch(1), new CountDownLatch(100))
    val order = new ConcurrentLinkedQueue[Int]
    assert(lanes.add("stuck", () => gate.await()))
    (1 to 100).foreach { i =>
      assert(lanes.add(
        "quick",
        () => {
          order.add(i)
          end.countDown()
        }))
    }
    assert(end.await(20, TimeUnit.SECONDS))
    assert(order.asScala.toSeq == (1 to 100))
    gate.countDown()
    lanes.close()
  }

  test("the caller does the work for which no thread can be made, and the lane goes on") {
    val done = new CountDownLatch(1)
    var isFirst = true
    val lanes = new Lanes(work =>
      if (isFirst) {
        isFirst = false
        throw new OutOfMemoryError("unable to create native thread")
      } else new Thread(work))
    assert(!lanes.add("lane", () => ()))
    assert(lanes.add("lane", () => done.countDown()))
    assert(done.await(20, TimeUnit.SECONDS))
    lanes.close()
  }

  test("lanes that are stuck hold a few daemon threads, and the caller does the rest") {
    val lanes = new Lanes
    val gate = new CountDownLatch(1)
    val taken = (1 to 50).count(i => lanes.add(s"lane $i", () => gate.await()))
    assert(taken > 1 && taken < 20)
    // What comes behind stuck work waits for it, and for nothing else.
    assert(lanes.add("lane 1", () => ()))
    val threads = Thread.getAllStackTraces.keySet.asScala.filter(_.getName == "redis-state-stage")
    assert(threads.forall(_.isDaemon))
    gate.countDown()
    lanes.close()
    assert(!lanes.add("late", () => ()))
  }
}
