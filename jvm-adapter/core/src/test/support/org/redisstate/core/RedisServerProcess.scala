package org.redisstate.core

import java.net.{InetAddress, ServerSocket, Socket}
import java.util.concurrent.TimeUnit

import scala.util.{Try, Using}

/**
 * A private server on a free loopback port; always stopped. The program is the one that the
 * environment variable `REDIS_STATE_SERVER` names, else the first on PATH.
 */
final class RedisServerProcess(options: String*) extends AutoCloseable {
  private val (process, itsPort) = start(RedisServerProcess.PortsMax)
  val port: Int = itsPort
  val url: String = s"redis://127.0.0.1:$port/0"

  /** Another program may take the port before the server does, which ends then. */
  private def start(ports: Int): (Process, Int) = {
    val port = RedisServerProcess.freePort()
    val program = RedisServerProcess.program
    val command = Seq(
      program,
      "--port",
      port.toString,
      "--bind",
      "127.0.0.1",
      "--save",
      "",
      "--appendonly",
      "no",
      "--loglevel",
      "warning",
      "--databases",
      "2") ++ options
    val started = new ProcessBuilder(command: _*)
      .redirectOutput(ProcessBuilder.Redirect.DISCARD)
      .redirectErrorStream(true)
      .start()
    Runtime.getRuntime.addShutdownHook(new Thread(() => started.destroyForcibly()))
    val up = Iterator
      .continually(Try(new Socket(InetAddress.getLoopbackAddress, port).close()).isSuccess)
      .take(RedisServerProcess.PollsMax)
      .takeWhile(_ => started.isAlive)
      .exists { ready =>
        if (!ready) Thread.sleep(RedisServerProcess.PollMs)
        ready
      }
    if (up) (started, port)
    else if (!started.isAlive && ports > 1) start(ports - 1)
    else {
      started.destroyForcibly()
      throw new IllegalStateException(s"$program did not answer on port $port")
    }
  }

  /** Stops the process where it is; its connections stay open. */
  def pause(): Unit = signal("STOP")

  /** Resumes the process. */
  def resume(): Unit = signal("CONT")

  private def signal(name: String): Unit = {
    val done = new ProcessBuilder("kill", s"-$name", process.pid.toString).start().waitFor()
    if (done != 0) throw new IllegalStateException(s"the server took no SIG$name")
  }

  override def close(): Unit = {
    process.destroyForcibly()
    process.waitFor(10, TimeUnit.SECONDS)
    ()
  }
}

object RedisServerProcess {
  private val PollsMax = 6000
  private val PortsMax = 5
  private val PollMs = 5L
  private val BusOffset = 10000

  /** Path or name of the server program that the tests run on. */
  lazy val program: String = sys.env
    .get("REDIS_STATE_SERVER")
    .filter(_.nonEmpty)
    .orElse(Seq("valkey-server", "redis-server").find(onPath))
    .getOrElse(
      throw new IllegalStateException(
        "no valkey-server or redis-server on PATH: run `make test`, which installs one"))

  /** A port that is free now, and low enough for a cluster's bus port above it. */
  def freePort(): Int = Iterator
    .continually(
      Using.resource(new ServerSocket(0, 1, InetAddress.getLoopbackAddress))(_.getLocalPort))
    .dropWhile(_ + BusOffset > 65535)
    .next()

  private def onPath(name: String): Boolean =
    sys.env.getOrElse("PATH", "").split(':').exists(dir => new java.io.File(dir, name).canExecute)
}
