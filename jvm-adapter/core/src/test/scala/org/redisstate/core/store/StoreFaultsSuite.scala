package org.redisstate.core.store

import java.nio.file.Files
import java.util.concurrent.CountDownLatch

import scala.util.{Random, Try}

import org.scalatest.funsuite.AnyFunSuite
import redis.clients.jedis.Jedis

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.Clock
import org.redisstate.core.errors.{FullException, RedisStateException, UnavailableException}
import org.redisstate.core.local.Slice

/** A store whose server is full, gone or not ready: named errors, nothing partial, and it works again. */
class StoreFaultsSuite extends AnyFunSuite {
  import StoreFaultsSuite._
  import TestPartition._

  /** Waiting costs no time, so that deadlines pass at once. */
  private final class JumpingClock extends Clock {
    private var now = 0L
    override def nowMs: Long = synchronized(now)
    override def sleep(ms: Long): Unit = synchronized { now += ms }
  }

  private def partition(name: String)(body: (TestPartition, RedisServerProcess) => Unit): Unit =
    test(name) {
      val server = new RedisServerProcess()
      try {
        val partition = new TestPartition(server, clock = new JumpingClock)
        try body(partition, server)
        finally partition.close()
      } finally server.close()
    }

  private def commit(
      store: PartitionVersions,
      version: Long)(change: WriteSession => Unit): Unit = {
    val session = store.open(version).write()
    change(session)
    session.commit()
    ()
  }

  private def read(version: OpenVersion, key: Array[Byte]): Option[String] = {
    val value = new Slice
    if (version.get(key, key.length, value)) Some(text(value)) else None
  }

  /** More than is staged before a commit. */
  private def putMuch(session: WriteSession): Unit =
    (0 until 60000).foreach(i => put(session, key(0, s"k$i"), i.toString * 30))

  private def setMemory(p: TestPartition, bytes: String): Unit = {
    assert(p.raw.configSet("maxmemory", bytes) == "OK")
    ()
  }

  for ((size, change) <- Seq[(String, WriteSession => Unit)](
      "a small" -> (put(_, key(0, "x"), "1")),
      "a staged" -> (putMuch(_))))
    partition(s"$size commit on a server without memory fails by name and leaves nothing") {
      (p, _) =>
        val store = p.store("a")
        commit(store, 0)(put(_, key(0, "x"), "0"))
        val session = store.open(1).write()
        change(session)
        setMemory(p, "1")
        val full = intercept[FullException](session.commit())
        assert(full.getMessage.contains("version 2") || full.getMessage.contains("d:2:"))
        session.abort()
        session.abort()
        assert(p.keys.forall(!_.startsWith("d:2:")))
        assert(p.keys.count(_.startsWith("d:")) == 1)
        setMemory(p, "0")
        assert(read(p.store("a").open(1), key(0, "x")).contains("0"))
        commit(store, 1)(change)
        val again = p.store("a").open(2)
        assert(rows(again.iterator(0)).size == again.numKeys)
        assert(p.damaged.isEmpty)
    }

  for ((size, change) <- Seq[(String, WriteSession => Unit)](
      "a small" -> (put(_, key(0, "x"), "1")),
      "a staged" -> (putMuch(_)))) {
    partition(s"$size write set is aborted without its server, twice and from another thread") {
      (p, server) =>
        val store = p.store("a")
        commit(store, 0)(put(_, key(0, "x"), "0"))
        val session = store.open(1).write()
        change(session)
        server.close()
        session.abort()
        var thrown: Throwable = null
        val other = new Thread(() =>
          try session.abort()
          catch { case e: Throwable => thrown = e })
        other.start()
        other.join()
        assert(thrown == null && !session.isUpdating)
    }

    partition(s"$size commit without its server fails by name, then its abort does not") {
      (p, server) =>
        val store = p.store("a")
        commit(store, 0)(put(_, key(0, "x"), "0"))
        val session = store.open(1).write()
        change(session)
        server.close()
        val gone = intercept[RedisStateException](session.commit())
        assert(gone.retryable)
        session.abort()
        assert(!session.hasCommitted)
    }
  }

  test("write sets that wait behind each other for a server that is gone share its deadline") {
    val server = new RedisServerProcess()
    val clock = new JumpingClock
    val p = new TestPartition(server, clock = clock, deadlineMs = 5000)
    try {
      val stores = (1 to 6).map(run => p.store(s"run $run"))
      val sessions = stores.map(_.open(0).write())
      sessions.foreach(put(_, key(0, "x"), "0"))
      server.close()
      val allWait = new CountDownLatch(1)
      stores.head.client.later(allWait.await()): Unit
      sessions.foreach(putMuch)
      allWait.countDown()
      sessions.foreach(session => intercept[RedisStateException](session.commit()))
      assert(clock.nowMs < 3 * 5000)
    } finally {
      p.close()
      server.close()
    }
  }

  test("a server that stands still while it is sent a large value is given up by name") {
    val server = new RedisServerProcess()
    try {
      val p = new TestPartition(server, deadlineMs = 1000, socketTimeoutMs = 100)
      val store = p.store("a")
      commit(store, 0)(put(_, key(0, "x"), "0"))
      val large = new Random(1).alphanumeric.take(Large).mkString
      val session = store.open(1).write()
      server.pause()
      put(session, key(0, "x"), large)
      val gone = intercept[UnavailableException](session.commit())
      assert(gone.getMessage.contains("did not accept a request"))
      session.abort()
      server.resume()
      commit(store, 1)(put(_, key(0, "x"), large))
      assert(read(p.store("b").open(2), key(0, "x")).contains(large))
      p.close()
    } finally server.close()
  }

  test("a new executor waits for a server that is loading, and begins with what it held") {
    val folder = Files.createTempDirectory("rs-loading")
    val gen = TestPartition.newGen()
    try {
      val server = new RedisServerProcess("--dir", folder.toString, "--rdbcompression", "no")
      try {
        val p = new TestPartition(server, gen = gen)
        commit(p.store("a"), 0)(put(_, key(0, "x"), "0"))
        fill(p.raw)
        p.close()
      } finally server.close()
      val loading = new RedisServerProcess(slow(folder.toString): _*)
      try {
        val clock = new Loading(loading)
        val p = new TestPartition(loading, clock = clock, gen = gen)
        assert(isLoading(p.raw))
        val store = p.store("a")
        assert(read(store.open(1), key(0, "x")).contains("0"))
        assert(clock.waits == 3)
        commit(store, 1)(put(_, key(0, "x"), "1"))
        assert(read(p.store("a").open(2), key(0, "x")).contains("1"))
        p.close()
      } finally loading.close()
    } finally {
      Files.deleteIfExists(folder.resolve("dump.rdb"))
      Files.deleteIfExists(folder)
      ()
    }
  }

  /** The third wait lets the server go on, which then loads the rest at once. */
  private final class Loading(server: RedisServerProcess) extends Clock {
    private var now = 0L
    var waits = 0

    override def nowMs: Long = now
    override def sleep(ms: Long): Unit = {
      now += ms
      waits += 1
      if (waits == 3) {
        val jedis = new Jedis("127.0.0.1", server.port)
        try {
          jedis.configSet("key-load-delay", "0")
          while (isLoading(jedis)) Thread.sleep(PollMs)
        } finally jedis.close()
      }
    }
  }

  private def isLoading(jedis: Jedis): Boolean =
    Try(jedis.ping()).failed.toOption.exists(_.getMessage.startsWith("LOADING"))

  private def fill(jedis: Jedis): Unit = {
    val pipeline = jedis.pipelined()
    (0 until Filling).foreach(n => pipeline.set(s"filling $n", "x" * IntervalBytes))
    pipeline.sync()
    assert(jedis.save() == "OK")
    ()
  }

  /** Half a minute for all keys. The server looks at its connections after each of them. */
  private def slow(folder: String): Seq[String] = Seq(
    "--dir",
    folder,
    "--key-load-delay",
    "5000",
    "--loading-process-events-interval-bytes",
    IntervalBytes.toString)
}

private object StoreFaultsSuite {
  val Filling = 6000

  /** More than the buffers of a connection hold, also compressed. */
  val Large: Int = 16 << 20
  val IntervalBytes = 1024
  val PollMs = 20L
}
