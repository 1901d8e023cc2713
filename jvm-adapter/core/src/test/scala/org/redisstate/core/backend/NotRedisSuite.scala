package org.redisstate.core.backend

import java.io.{FileInputStream, InputStream}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.security.KeyStore
import javax.net.ssl.{KeyManagerFactory, SSLContext}

import scala.util.{Try, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.errors.{ConfigException, RedisStateException, UnavailableException}

/** Calls to a port that is not Redis's: a named error says what to check. */
class NotRedisSuite extends AnyFunSuite {
  import NotRedisSuite._

  for (password <- Seq(None, Some("geheim"))) {
    test(s"HTTP, with a password: ${password.isDefined}") {
      Using.resource(new Listener(plain, speaksHttp)) { server =>
        val e = failure(s"redis://127.0.0.1:${server.port}/0", password)
        assert(e.isInstanceOf[ConfigException], e)
        assert(e.getMessage.contains(s"127.0.0.1:${server.port}"))
        assert(e.getMessage.contains("is not Redis"))
        assert(e.getMessage.contains("Check host and port"))
        assert(!e.getMessage.contains("geheim"))
      }
    }
  }

  test("TLS where none was asked for") {
    Using.resource(new Listener(withTls, readsOn)) { server =>
      val e = failure(s"redis://127.0.0.1:${server.port}/0")
      assert(e.isInstanceOf[ConfigException] || e.isInstanceOf[UnavailableException], e)
      assert(e.getMessage.contains("use a rediss:// URL"))
    }
  }

  test("no TLS where it was asked for: HTTP") {
    Using.resource(new Listener(plain, speaksHttp)) { server =>
      val e = failure(s"rediss://127.0.0.1:${server.port}/0")
      assert(e.isInstanceOf[ConfigException], e)
      assert(e.getMessage.contains("Check that the port speaks TLS"))
    }
  }

  test("no TLS where it was asked for: Redis") {
    Using.resource(new RedisServerProcess()) { server =>
      val e = failure(server.url.replace("redis://", "rediss://"))
      assert(e.isInstanceOf[UnavailableException] || e.isInstanceOf[ConfigException], e)
      assert(e.getMessage.contains("speak"))
      assert(e.getMessage.contains("TLS"))
    }
  }

  test("silence") {
    Using.resource(new Listener(plain, readsOn)) { server =>
      val e = failure(s"redis://127.0.0.1:${server.port}/0")
      assert(e.isInstanceOf[UnavailableException], e)
      assert(e.getMessage.contains(s"127.0.0.1:${server.port}"))
      assert(e.getMessage.contains("Read timed out"))
      assert(e.getMessage.contains("Check that the server runs"))
    }
  }

  test("connections that are closed at once") {
    Using.resource(new Listener(plain, _ => ())) { server =>
      val e = failure(s"redis://127.0.0.1:${server.port}/0")
      assert(e.isInstanceOf[UnavailableException], e)
      assert(e.getMessage.contains(s"127.0.0.1:${server.port}"))
      assert(e.getMessage.contains("Check that the server runs"))
    }
  }

  test("nobody listens") {
    val port = RedisServerProcess.freePort()
    val e = failure(s"redis://127.0.0.1:$port/0")
    assert(e.isInstanceOf[UnavailableException], e)
    assert(
      e.getMessage.contains(s"no connection to redis://127.0.0.1:$port/0: Connection refused."))
  }

  test("a reply that is garbled is asked for again, where a Redis has answered before") {
    Using.resource(new Listener(plain, answersThenSpeaksHttp)) { server =>
      Using.resource(backend(s"redis://127.0.0.1:${server.port}/0", None)) { backend =>
        for (_ <- 1 to 3) assert(backend.call("ask", Seq(Command("TIME"))).size == 1)
      }
    }
  }

  private def failure(url: String, password: Option[String] = None): RedisStateException =
    Using.resource(backend(url, password)) { backend =>
      intercept[RedisStateException](backend.call("ask for the time", Seq(Command("TIME"))))
    }

  private def backend(url: String, password: Option[String]): RedisBackend = {
    val settings = TestConnection
      .settings(url, socketTimeoutMs = 200, deadlineMs = 1000, connectionsMax = 2)
      .copy(username = password.map(_ => "joe"), password = password.map(new Secret(_)))
    new RedisBackend(Transports.to(settings), settings.deadlineMs, Clock.System, () => false)
  }

  private lazy val tls: SSLContext = {
    val store = Files.createTempDirectory("tls").resolve("keys.p12")
    val made = new ProcessBuilder(
      Seq(
        s"${System.getProperty("java.home")}/bin/keytool",
        "-genkeypair",
        "-alias",
        "server",
        "-keyalg",
        "RSA",
        "-dname",
        "CN=127.0.0.1",
        "-storetype",
        "PKCS12",
        "-keystore",
        store.toString,
        "-storepass",
        "changeit"
      ): _*).redirectErrorStream(true).start()
    made.getInputStream.readAllBytes()
    assert(made.waitFor() == 0)
    val keys = KeyStore.getInstance("PKCS12")
    Using.resource(new FileInputStream(store.toFile))(keys.load(_, "changeit".toCharArray))
    val managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm)
    managers.init(keys, "changeit".toCharArray)
    val context = SSLContext.getInstance("TLS")
    context.init(managers.getKeyManagers, null, null)
    context
  }

  private def withTls: ServerSocket =
    tls.getServerSocketFactory.createServerSocket(0, 50, InetAddress.getLoopbackAddress)
}

object NotRedisSuite {

  /** Passes each connection to a function, then closes the connection. */
  final class Listener(open: => ServerSocket, handle: Socket => Unit) extends AutoCloseable {
    private val server = open
    val port: Int = server.getLocalPort
    accept()

    private def accept(): Unit = {
      val thread = new Thread(() =>
        while (!server.isClosed) Try(server.accept()).foreach { socket =>
          val one = new Thread(() => { Try(handle(socket)); socket.close() })
          one.setDaemon(true)
          one.start()
        })
      thread.setDaemon(true)
      thread.start()
    }

    override def close(): Unit = server.close()
  }

  private def plain: ServerSocket = new ServerSocket(0, 50, InetAddress.getLoopbackAddress)

  private val http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".getBytes(UTF_8)

  private def speaksHttp(socket: Socket): Unit = {
    socket.getInputStream.read(new Array[Byte](1024))
    socket.getOutputStream.write(http)
  }

  private def readsOn(socket: Socket): Unit = {
    val in: InputStream = socket.getInputStream
    while (in.read(new Array[Byte](1024)) >= 0) ()
  }

  private def answersThenSpeaksHttp(socket: Socket): Unit = {
    for (_ <- 1 to 2) {
      socket.getInputStream.read(new Array[Byte](1024))
      socket.getOutputStream.write("*2\r\n$1\r\n1\r\n$1\r\n2\r\n".getBytes(UTF_8))
    }
    while (socket.getInputStream.read(new Array[Byte](1024)) >= 0)
      socket.getOutputStream.write(http)
  }
}
