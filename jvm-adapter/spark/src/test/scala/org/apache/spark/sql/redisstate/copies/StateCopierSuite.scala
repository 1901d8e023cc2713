package org.apache.spark.sql.redisstate.copies

import java.nio.file.{Files, Path => JPath}
import java.util.UUID

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.checkpoint.CopyNames
import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.UnavailableException

/** Whom the copying of a query's state keeps waiting. */
class StateCopierSuite extends AnyFunSuite {

  test("who ends a query does not wait for its copy") {
    withCopier { (server, _, run, copier) =>
      server.pause()
      copier.batchDone(1)
      copier.finish()
      val copying = Thread.getAllStackTraces.keySet.asScala.find(_.getName.contains(run.toString))
      server.resume()
      assert(copying.isDefined)
      copying.foreach(_.join())
    }
  }

  test("a registry that was lost is told of, once there was state to copy") {
    withCopier { (_, checkpoint, _, copier) =>
      copier.copy(1)
      val copy = checkpoint.resolve(s"state/${CopyNames.Folder}/1-${"0" * 32}")
      Files.createDirectories(copy)
      Files.writeString(copy.resolve("manifest"), "\n{\"version\": 1, \"offsets\": \"other\"}")
      val e = intercept[UnavailableException](copier.copy(1))
      assert(e.getMessage.contains("the registry in Redis no longer lists the stores"))
      assert(Files.exists(copy))
    }
  }

  private def withCopier(use: (RedisServerProcess, JPath, UUID, StateCopier) => Unit): Unit = {
    val server = new RedisServerProcess
    try {
      val checkpoint = Files.createTempDirectory("copied")
      Files.createDirectory(checkpoint.resolve("offsets"))
      Files.writeString(checkpoint.resolve("offsets/0"), "v1")
      val options = Map("url" -> server.url, "deadline" -> "10s", "copyEveryBatches" -> "1")
      val conf = RedisStateConf(options.map { case (k, v) => RedisStateConf.Prefix + k -> v }, 100)
      val run = UUID.randomUUID()
      val copier =
        new StateCopier(run, "0" * 32, new Path(checkpoint.toUri), new Configuration, conf)
      use(server, checkpoint, run, copier)
    } finally server.close()
  }
}
