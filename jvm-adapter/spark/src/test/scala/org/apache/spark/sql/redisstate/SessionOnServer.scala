package org.apache.spark.sql.redisstate

import java.nio.file.{Files, Path}
import java.nio.file.attribute.FileTime

import org.scalatest.{BeforeAndAfterAll, Suite}

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.RedisServerProcess

/** A session of Spark beside a server of its own, whose queries read a file in each batch. */
trait SessionOnServer extends BeforeAndAfterAll { this: Suite =>
  protected lazy val server = new RedisServerProcess
  protected lazy val spark: SparkSession = SparkSession
    .builder()
    .master("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.codegen.wholeStage", "false") // compiling would be most of the time
    .config("spark.sql.extensions", classOf[RedisStateSparkExtension].getName)
    .config(RedisStateConf.Prefix + "url", server.url)
    .config(settings)
    .getOrCreate()

  /** Further settings of the session. */
  protected def settings: Map[String, String] = Map.empty

  override def afterAll(): Unit = {
    spark.stop()
    server.close()
  }

  /** Adds the file of a batch to a folder. Spark reads files in the order of their times. */
  protected def add(folder: Path, number: Int, lines: Seq[String]): Unit = {
    val file = Files.createTempFile("events", ".json")
    Files.writeString(file, lines.mkString("\n"))
    Files.setLastModifiedTime(file, FileTime.fromMillis(1000000000000L + number * 1000L))
    Files.move(file, folder.resolve(f"$number%05d.json"))
    ()
  }
}
