package org.redisstate.core.store

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.Clock
import org.redisstate.core.errors.{FullException, RedisStateException}
import org.redisstate.core.local.Slice

/** A store whose server is full or gone: named errors, nothing partial, and it works again. */
class StoreFaultsSuite extends AnyFunSuite {
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

  private def commit(store: PartitionStore, version: Long)(change: WriteSession => Unit): Unit = {
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
        assert(store.client.verify().damaged.isEmpty)
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
}
