package org.redisstate.core.backend

import java.nio.file.{Files, Path}

import scala.util.{Try, Using}

import redis.clients.jedis.Jedis

import org.redisstate.core.RedisServerProcess

/** One sentinel on loopback that watches one master under a name; always stopped. */
private[backend] final class RedisSentinelProcess(name: String, masterPort: Int)
    extends AutoCloseable {
  val port: Int = RedisServerProcess.freePort()
  private val config = writeConfig()
  private val process =
    new ProcessBuilder(RedisServerProcess.program, config.toString, "--sentinel")
      .redirectOutput(ProcessBuilder.Redirect.DISCARD)
      .redirectErrorStream(true)
      .start()
  Runtime.getRuntime.addShutdownHook(new Thread(() => { process.destroyForcibly(); () }))
  awaitReady()

  override def close(): Unit = {
    process.destroyForcibly().waitFor()
    Files.deleteIfExists(config)
    Files.deleteIfExists(config.getParent)
    ()
  }

  /** A sentinel rewrites the file that it is started with. */
  private def writeConfig(): Path = {
    val file = Files.createTempDirectory("rs-sentinel").resolve("sentinel.conf")
    Files.writeString(
      file,
      s"""port $port
         |bind 127.0.0.1
         |sentinel monitor $name 127.0.0.1 $masterPort 1
         |sentinel down-after-milliseconds $name 1000
         |""".stripMargin
    )
  }

  private def awaitReady(): Unit = {
    def answers = Try(Using.resource(new Jedis("127.0.0.1", port))(_.ping())).isSuccess
    val up = Iterator.continually(answers).take(RedisSentinelProcess.PollsMax).exists { ready =>
      if (!ready) Thread.sleep(RedisSentinelProcess.PollMs)
      ready
    }
    if (!up) {
      close()
      throw new IllegalStateException(s"the sentinel did not answer on port $port")
    }
  }
}

private object RedisSentinelProcess {
  val PollsMax = 600
  val PollMs = 50L
}
