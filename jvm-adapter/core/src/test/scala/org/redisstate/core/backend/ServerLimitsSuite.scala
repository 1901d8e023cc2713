package org.redisstate.core.backend

import java.net.{InetAddress, Socket}
import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable
import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.errors._

/** A server that lacks a command, or has a limit, is named as such, and not as one that is down. */
class ServerLimitsSuite extends AnyFunSuite {
  import ServerLimitsSuite._

  for (login <- Seq(None, Some("joe"))) {
    test(s"no more connections are an error at the deadline, with a user: ${login.nonEmpty}") {
      Using.resource(new RedisServerProcess("--maxclients", "3")) { server =>
        allow(server)
        fillWithClients(server) { _ =>
          val clock = new Hand(() => ())
          val e = failure(server, user = login, clock = clock)(_.call("greet", Seq(Ping)))
          assert(e.isInstanceOf[UnavailableException], e)
          assert(e.asInstanceOf[UnavailableException].isAnswered)
          assert(
            e.getMessage.contains("max number of clients reached. Raise maxclients on the server"))
          assert(!e.getMessage.contains("Check that the server runs"))
          assert(clock.nowMs >= DeadlineMs)
          val commit = failure(server, user = login)(_.transaction("commit", Seq(Set("1"))))
          assert(commit.isInstanceOf[OutcomeUnknownException], commit)
          assert(commit.getMessage.contains("maxclients"))
        }
      }
    }
  }

  test("a connection that becomes free is used") {
    Using.resource(new RedisServerProcess("--maxclients", "3")) { server =>
      fillWithClients(server) { held =>
        val clock = new Hand(() => if (held.nonEmpty) held.remove(0).close())
        Using.resource(connect(server, clock = clock)) { backend =>
          assert(backend.call("greet", Seq(Ping)).size == 1)
        }
        assert(clock.nowMs > 0)
      }
    }
  }

  for (name <- ServerNeeds.Commands) {
    test(s"$name is lacking: named before anything is written") {
      Using.resource(new RedisServerProcess(lacking(name): _*)) { server =>
        val e = failure(server, checks = true)(_.call("greet", Seq(Ping)))
        assert(e.isInstanceOf[ConfigException], e)
        assert(e.getMessage.contains(s"${server.url} lacks the command $name:"))
        assert(e.getMessage.contains("rename-command"))
      }
    }
  }

  for (name <- Seq("INFO", "CONFIG", "HELLO", "COMMAND", "CLIENT", "ROLE")) {
    test(s"$name is lacking, which nobody needs") {
      Using.resource(new RedisServerProcess(lacking(name): _*)) { server =>
        allow(server)
        for (user <- Seq(None, Some("joe"))) {
          Using.resource(connect(server, checks = true, user = user)) { backend =>
            assert(backend.transaction("commit", Seq(Set("1"))).size == 1)
          }
        }
      }
    }
  }

  for (name <- Seq("HSET", "MULTI", "EXEC", "EVAL", "EVALSHA")) {
    test(s"$name goes missing: named without its arguments") {
      val sent = Map(
        "HSET" -> Command("HSET", "{x}", Secret, Secret),
        "EVAL" -> Command("EVAL", s"return '$Secret'", "0"),
        "EVALSHA" -> Command("EVALSHA", "0" * 40, "0", Secret))
      Using.resource(new RedisServerProcess(lacking(name): _*)) { server =>
        val e = failure(server) { backend =>
          sent.get(name).fold(backend.transaction("try", Seq(Set(Secret)))) { one =>
            backend.call("try", Seq(one))
          }
        }
        assert(e.isInstanceOf[ConfigException], e)
        assert(e.getMessage.contains(s"lacks the command $name:"))
        assert(!e.getMessage.contains(Secret))
      }
    }
  }

  test("a command that only a script calls is named") {
    Using.resource(new RedisServerProcess(lacking("HSETNX", "HSET"): _*)) { server =>
      val call = Command("EVAL", "return redis.call('HSET', KEYS[1], 'a', 'b')", "1", "{x}")
      val e = failure(server)(_.call("try", Seq(call)))
      assert(e.isInstanceOf[ConfigException], e)
      assert(e.getMessage.contains("lacks commands (HSET, HSETNX):"))
    }
  }

  test("a lacking command of the connection is named") {
    Using.resource(new RedisServerProcess(lacking("SELECT", "AUTH"): _*)) { server =>
      allow(server)
      val auth = failure(server, user = Some("joe"))(_.call("greet", Seq(Ping)))
      assert(auth.isInstanceOf[ConfigException], auth)
      assert(auth.getMessage.contains("lacks the command AUTH:"))
      val url = server.url.stripSuffix("/0") + "/1"
      val select = failure(server, url = Some(url))(_.call("greet", Seq(Ping)))
      assert(select.isInstanceOf[ConfigException], select)
      assert(select.getMessage.contains("lacks the command SELECT:"))
    }
  }

  for (refused <- Seq("rename-command", "rights")) {
    test(s"a refused EXEC leaves no connection inside a transaction: $refused") {
      val options = if (refused == "rights") Nil else lacking("EXEC")
      Using.resource(new RedisServerProcess(options: _*)) { server =>
        allow(server, Seq("-exec").filter(_ => refused == "rights"): _*)
        Using.resource(connect(server, user = Some("joe"))) { backend =>
          intercept[RedisStateException](backend.transaction("try", Seq(Set("1"))))
          assert(backend.call("read", Seq(Command("GET", "{x}"))) == Seq(null))
        }
      }
    }
  }

  test("a large request without a login requires a password") {
    Using.resource(new RedisServerProcess("--requirepass", "geheim")) { server =>
      val sent = Seq(
        Command("EVALSHA", Seq.fill(20)("x"): _*),
        Command("EVAL", "x" * 20000, "0"))
      for (one <- sent) {
        val e = failure(server)(_.call("try", Seq(one)))
        assert(e.isInstanceOf[PermissionException], e)
        assert(failure(server, checks = true)(_.call("try", Seq(one))).getMessage.contains(
          "requires a password"))
      }
    }
  }

  test("a password for a server without one") {
    Using.resource(new RedisServerProcess()) { server =>
      val e = failure(server, password = Some("geheim"))(_.call("greet", Seq(Ping)))
      assert(e.isInstanceOf[PermissionException], e)
      assert(e.getMessage.contains("Check username and password"))
      assert(!e.getMessage.contains("geheim"))
    }
  }

  for (limit <- Seq("proto-max-bulk-len", "client-query-buffer-limit")) {
    test(s"a block above $limit names the limit") {
      Using.resource(new RedisServerProcess(s"--$limit", "1mb")) { server =>
        val block = Command("HSET", Seq("{x}", "f").map(Command.bytes).toArray :+ fiveMib)
        val sent = Seq(Set("1"), block)
        for (work <- Seq[RedisBackend => Any](_.call("try", sent), _.transaction("try", sent))) {
          val e = failure(server)(work)
          assert(e.isInstanceOf[ConfigException], e)
          assert(e.getMessage.contains(limit))
          assert(e.getMessage.contains("make the rows smaller"))
        }
        allow(server, "-config")
        val unasked = failure(server, user = Some("joe"))(_.call("try", Ping +: sent))
        assert(unasked.getMessage.contains(limit), unasked)
      }
    }
  }

  for (mayAsk <- Seq(true, false)) {
    test(s"an answer above a limit names the limit, with the right to ask: $mayAsk") {
      val options = Seq("--client-output-buffer-limit", "normal 1mb 1mb 1")
      Using.resource(new RedisServerProcess(options: _*)) { server =>
        allow(server, Seq("-config").filterNot(_ => mayAsk): _*)
        Using.resource(connect(server, user = Some("joe"), checks = true)) { backend =>
          backend.call("write", Seq(Command("SET", Array(Command.bytes("{x}"), fiveMib))))
          val e =
            intercept[UnavailableException](backend.call("read", Seq(Command("GET", "{x}"))))
          assert(e.getMessage.contains("client-output-buffer-limit"))
          assert(!e.getMessage.contains("Check that the server runs"))
          assert(!e.getMessage.contains("TLS"))
        }
      }
    }
  }

  test("the look at the start needs no right") {
    Using.resource(new RedisServerProcess()) { server =>
      allow(server, "-@all", "+info", "+ping")
      Using.resource(connect(server, user = Some("joe"), checks = true)) { backend =>
        backend.call("greet", Seq(Ping))
      }
      Using.resource(connect(server)) { admin =>
        assert(admin.call("look", Seq(Command("ACL", "LOG"))) == Seq(Nil))
      }
    }
  }
}

object ServerLimitsSuite {
  private val DeadlineMs = 1000L
  private val Secret = "a-row-of-the-state"
  private val Ping = Command("PING")
  private def Set(value: String) = Command("SET", "{x}", value)
  private lazy val fiveMib = new Random(7).nextBytes(5 << 20)

  /** Time that passes where somebody waits, and nowhere else. */
  private final class Hand(meanwhile: () => Unit) extends Clock {
    var nowMs = 0L
    override def sleep(ms: Long): Unit = {
      nowMs += ms
      meanwhile()
    }
  }

  private def lacking(names: String*): Seq[String] =
    names.flatMap(name => Seq("--rename-command", name, s"TEST-$name"))

  private def connect(
      server: RedisServerProcess,
      url: Option[String] = None,
      user: Option[String] = None,
      password: Option[String] = None,
      checks: Boolean = false,
      clock: Clock = new Hand(() => ())): RedisBackend = {
    val settings = TestConnection
      .settings(
        url.getOrElse(server.url),
        socketTimeoutMs = 1000,
        deadlineMs = DeadlineMs,
        connectionsMax = 2)
      .copy(
        username = user,
        password = password.orElse(user.map(_ => "pw")).map(new Secret(_)))
    val check: (Seq[Command] => Seq[AnyRef]) => Unit =
      if (checks) {
        ServerChecks.check(settings.url.toString, settings.durability, user.isEmpty, _)
      } else _ => ()
    new RedisBackend(Transports.to(settings), DeadlineMs, clock, () => false, check)
  }

  private def failure(
      server: RedisServerProcess,
      url: Option[String] = None,
      user: Option[String] = None,
      password: Option[String] = None,
      checks: Boolean = false,
      clock: Clock = new Hand(() => ()))(work: RedisBackend => Any): RedisStateException =
    Using.resource(connect(server, url, user, password, checks, clock)) { backend =>
      try throw new AssertionError(s"it did not fail: ${work(backend)}")
      catch { case e: RedisStateException => e }
    }

  private def allow(server: RedisServerProcess, rules: String*): Unit = {
    val all = Seq("SETUSER", "joe", "on", ">pw", "~*", "+@all") ++ rules
    Using.resource(connect(server))(_.call("allow", Seq(Command("ACL", all: _*))))
    ()
  }

  /** With as many connections as the server takes, and some that it does not take. */
  private def fillWithClients(server: RedisServerProcess)(
      work: mutable.ArrayBuffer[Socket] => Unit): Unit = {
    val held = mutable.ArrayBuffer.empty[Socket]
    try {
      var taken = true
      while (taken) {
        held += new Socket(InetAddress.getLoopbackAddress, server.port)
        held.last.getOutputStream.write("PING\r\n".getBytes(UTF_8))
        taken = held.last.getInputStream.read() == '+'
      }
      work(held)
    } finally held.foreach(_.close())
  }
}
