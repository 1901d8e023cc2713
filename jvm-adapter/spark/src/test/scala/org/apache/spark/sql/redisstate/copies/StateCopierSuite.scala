package org.apache.spark.sql.redisstate.copies

import java.nio.file.Files
import java.util.UUID

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.RedisServerProcess

/** Whom the copying of a query's state keeps waiting. */
class StateCopierSuite extends AnyFunSuite {

  test("who ends a query does not wait for its copy") {
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
      server.pause()
      copier.batchDone(1)
      copier.finish()
      val copying = Thread.getAllStackTraces.keySet.asScala.find(_.getName.contains(run.toString))
      server.resume()
      assert(copying.isDefined)
      copying.foreach(_.join())
    } finally server.close()
  }
}
