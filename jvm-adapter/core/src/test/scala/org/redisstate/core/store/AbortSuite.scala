package org.redisstate.core.store

import java.util.concurrent.{Callable, Executors, TimeUnit}

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Transport}

/** Redis contents after Spark gives up an attempt, usually by an interrupt of its thread. */
class AbortSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def staged(p: TestPartition): Set[String] = p.keys.filter(_.startsWith("d:"))

  /** More than is staged before a commit, or less: a MiB is a round trip. */
  private def put(session: WriteSession, mib: Int): Unit =
    (0 until mib * 16).foreach(i => TestPartition.put(session, key(0, s"k$i"), noise(i)))

  /** 64 KiB that do not compress much. */
  private def noise(seed: Int): String =
    new scala.util.Random(seed).alphanumeric.take(64 << 10).mkString

  /** Interrupts the thread that asks, after so many of its exchanges from `arm` on. */
  private final class Interrupting(real: Transport) extends Transport {
    private var left = -1
    def arm(exchanges: Int): Unit = left = exchanges

    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      val replies = real.exchange(commands)
      left -= 1
      if (left == 0) Thread.currentThread.interrupt()
      replies
    }
    override def close(): Unit = real.close()
  }

  test(
    "an abort on an interrupted thread removes what was staged, and leaves the thread interrupted") {
    val p = new TestPartition(server)
    try {
      val session = p.store("a").open(0).write()
      put(session, mib = 6)
      Thread.currentThread.interrupt()
      session.abort()
      assert(Thread.interrupted())
      assert(staged(p).isEmpty)
      session.abort()
    } finally {
      Thread.interrupted()
      p.close()
    }
  }

  test("a commit that an interrupt ends leaves nothing after its abort") {
    var transport: Interrupting = null
    val p = new TestPartition(
      server,
      between = real => {
        transport = new Interrupting(real)
        transport
      })
    try {
      val session = p.store("a").open(0).write()
      put(session, mib = 3)
      assert(staged(p).isEmpty)
      transport.arm(exchanges = 1)
      intercept[InterruptedException](session.commit())
      assert(staged(p).size == 1)
      Thread.currentThread.interrupt()
      session.abort()
      assert(Thread.interrupted())
      assert(staged(p).isEmpty)
    } finally {
      Thread.interrupted()
      p.close()
    }
  }

  test("a server that stands still does not keep the staged blocks of another one waiting") {
    val away = new RedisServerProcess()
    val other = new TestPartition(away, deadlineMs = 120000, socketTimeoutMs = 120000)
    val p = new TestPartition(server)
    val threads = Executors.newSingleThreadExecutor()
    try {
      val waiting = other.store("a").open(0).write()
      TestPartition.put(waiting, key(0, "x"), "1")
      away.pause()
      put(waiting, mib = 6)
      val session = p.store("a").open(0).write()
      put(session, mib = 6)
      val commit: Callable[Unit] = () => { session.commit(); () }
      threads.submit(commit).get(60, TimeUnit.SECONDS)
      away.resume()
      waiting.abort()
      assert(staged(other).isEmpty)
    } finally {
      threads.shutdownNow()
      away.resume()
      other.close()
      p.close()
      away.close()
    }
  }
}
