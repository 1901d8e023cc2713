package org.redisstate.core.backend

import scala.collection.mutable

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.UnavailableException

/** Background work of many stores, some of whose servers do not answer. */
class ServerPausesSuite extends AnyFunSuite {
  import ServerPausesSuite._

  /** Does the maintenance of a store; false if it was skipped, or if the server gave no answer. */
  private def maintain(backend: RedisBackend, key: String): Boolean =
    try backend.whileAnswering(key) {
        backend.call("maintain", Seq(Command("GET", key)))
        ()
      }
    catch { case _: UnavailableException => false }

  private def onServers(test: (Servers, RedisBackend) => Unit): Unit = {
    val servers = new Servers
    test(servers, new RedisBackend(servers, DeadlineMs, servers, () => false))
  }

  test("a silent server holds its first store until the deadline, and no other one") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      assert(!maintain(backend, "a1") && servers.nowMs >= DeadlineMs)
      val (heldMs, tries) = (servers.nowMs, servers.tries("a"))
      (2 to 9).foreach(n => assert(!maintain(backend, s"a$n") && maintain(backend, s"b$n")))
      assert(servers.nowMs == heldMs && servers.tries("a") == tries)
    }
  }

  test("pauses double up to a minute, and each ends with one try") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      maintain(backend, "a1")
      val triedAt = mutable.ArrayBuffer.empty[Long]
      val endMs = servers.nowMs + 300000
      while (servers.nowMs < endMs) {
        val before = servers.tries("a")
        (1 to 3).foreach(n => assert(!maintain(backend, s"a$n")))
        if (servers.tries("a") > before) {
          assert(servers.tries("a") == before + 1)
          triedAt += servers.nowMs
        }
        servers.nowMs += 100
      }
      val pauses = triedAt.zip(triedAt.tail).map { case (one, next) => next - one }
      assert(pauses.zip(Seq(2, 4, 8, 16, 32, 60, 60)).forall { case (found, seconds) =>
        found >= seconds * 1000 && found < seconds * 1000 + 500
      })
      assert(pauses.size >= 6)
    }
  }

  test("the first answer after a pause ends the silence") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      maintain(backend, "a1")
      servers.silent -= "a"
      assert(!maintain(backend, "a1"))
      servers.nowMs += ServerPauses.PauseMinMs
      (1 to 5).foreach(n => assert(maintain(backend, s"a$n")))
      // The next silence begins with a short pause again.
      servers.silent += "a"
      maintain(backend, "a1")
      servers.silent -= "a"
      servers.nowMs += ServerPauses.PauseMinMs
      assert(maintain(backend, "a1"))
    }
  }

  test("a server that answers but does not serve stays silent, and its pause doubles") {
    onServers { (servers, backend) =>
      servers.loading += "a"
      maintain(backend, "a1")
      servers.nowMs += ServerPauses.PauseMinMs
      servers.refusing += "a"
      // It tells whether a key exists, and refuses all else.
      servers.loading -= "a"
      assert(!maintain(backend, "a2"))
      servers.nowMs += ServerPauses.PauseMinMs
      val before = servers.tries("a")
      assert(!maintain(backend, "a3") && servers.tries("a") == before)
    }
  }

  test("one thread alone tries a server that was silent") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      maintain(backend, "a1")
      servers.silent -= "a"
      servers.nowMs += ServerPauses.PauseMinMs
      var others = Seq.empty[Boolean]
      servers.during = () => {
        servers.during = () => ()
        others :+= maintainElsewhere(backend)
      }
      assert(maintain(backend, "a1"))
      assert(others == Seq(false))
      assert(maintain(backend, "a2"))
    }
  }

  test("work that is stuck holds the other stores of its server for a minute at most") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      maintain(backend, "a1")
      servers.silent -= "a"
      servers.nowMs += ServerPauses.PauseMinMs
      var others = Seq.empty[Boolean]
      assert(backend.whileAnswering("a1") {
        others :+= maintainElsewhere(backend)
        servers.nowMs += ServerPauses.PauseMaxMs
        others :+= maintainElsewhere(backend)
      })
      assert(others == Seq(false, true))
    }
  }

  test("a task's calls go on while background work pauses") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      maintain(backend, "a1")
      servers.silent -= "a"
      assert(backend.call("load", Seq(Command("GET", "a1"))) == Seq("value"))
    }
  }

  test("a folder that does not answer is no silence of the server") {
    onServers { (servers, backend) =>
      intercept[UnavailableException](backend.whileAnswering("a1") {
        backend.call("maintain", Seq(Command("GET", "a1")))
        throw new UnavailableException("the folder does not answer")
      }): Unit
      assert(maintain(backend, "a2"))
    }
  }

  test("a silence that the work itself takes note of pauses the others") {
    onServers { (servers, backend) =>
      servers.silent += "a"
      assert(backend.whileAnswering("a1") { maintainQuietly(backend) })
      val tries = servers.tries("a")
      assert(!maintain(backend, "a2") && servers.tries("a") == tries)
    }
  }

  /** Maintains another store of the server in another thread; returns whether that was done. */
  private def maintainElsewhere(backend: RedisBackend): Boolean = {
    var isDone = false
    val other = new Thread(() => isDone = maintain(backend, "a2"))
    other.start()
    other.join()
    isDone
  }

  private def maintainQuietly(backend: RedisBackend): Unit =
    try {
      backend.call("maintain", Seq(Command("GET", "a1")))
      ()
    } catch { case _: UnavailableException => () }
}

object ServerPausesSuite {
  private val DeadlineMs = 10000L
  private val TryMs = 100L

  /** Servers named by the first letter of the keys, and a clock that they move. */
  private final class Servers extends Transport with Clock {
    @volatile var nowMs = 0L
    val silent, loading, refusing = mutable.Set.empty[String]
    val tries: mutable.Map[String, Int] = mutable.HashMap.empty[String, Int].withDefaultValue(0)
    @volatile var during: () => Unit = () => ()

    override def sleep(ms: Long): Unit = nowMs += ms
    override def serverOf(key: String): String = key.take(1)

    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      val server = serverOf(new String(commands.head.args.head))
      tries(server) += 1
      during()
      if (silent(server)) {
        nowMs += TryMs
        throw new TransportException("no answer", null)
      }
      commands.map { command =>
        if (loading(server)) ErrorReply("LOADING Redis is loading the dataset in memory")
        else if (refusing(server) && command.name != "EXISTS")
          ErrorReply("READONLY You can't write against a read only replica.")
        else "value"
      }
    }

    override def close(): Unit = ()
  }
}
