package org.redisstate.core.backend

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}

import redis.clients.jedis.Jedis

import org.redisstate.core.RedisServerProcess

/** One sentinel on loopback that watches one master under a name; always stopped. */
private[core] final class RedisSentinelProcess(name: String, masterPort: Int)
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

  /** Waits until the sentinel knows a replica that has caught up; a fail-over needs one. */
  def awaitReplicas(count: Int): Unit = {
    def known = Using.resource(new Jedis("127.0.0.1", port)) { jedis =>
      jedis.sentinelReplicas(name).asScala.count(_.get("master-link-status") == "ok")
    }
    await(known >= count, s"the sentinel on port $port does not know $count replicas")
  }

  def awaitReplica(): Unit = awaitReplicas(1)

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
    await(answers, s"the sentinel did not answer on port $port")
  }

  private def await(condition: => Boolean, otherwise: String): Unit = {
    val reached =
      Iterator.continually(condition).take(RedisSentinelProcess.PollsMax).exists { ready =>
        if (!ready) Thread.sleep(RedisSentinelProcess.PollMs)
        ready
      }
    if (!reached) {
      close()
      throw new IllegalStateException(otherwise)
    }
  }
}

private object RedisSentinelProcess {
  val PollsMax = 600
  val PollMs = 50L
}
