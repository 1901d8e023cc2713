package org.apache.spark.sql.redisstate.move.checkpoint

import java.nio.file.{Files, Path => LocalPath}
import java.util.concurrent.atomic.AtomicBoolean

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

/** Files of a checkpoint that are replaced, and what a process that dies meanwhile leaves. */
class CheckpointFilesSuite extends AnyFunSuite {
  private val files = new CheckpointFiles(new Configuration())

  private def folder(): LocalPath = Files.createTempDirectory("checkpoint-files")

  private def names(folder: LocalPath): Set[String] =
    Files.list(folder).iterator.asScala.map(_.getFileName.toString).toSet

  test("a local file is never missing while it is replaced") {
    val file = folder().resolve("2")
    Files.writeString(file, "0")
    // As Hadoop has written the older one.
    Files.writeString(file.resolveSibling(".2.crc"), "its checksum")
    val over = new AtomicBoolean
    @volatile var wrong: Option[Throwable] = None
    val reader = new Thread(() =>
      try while (!over.get) assert(Files.readString(file).toInt >= 0)
      catch { case e: Throwable => wrong = Some(e) })
    reader.start()
    for (n <- 1 to 200) files.write(new Path(file.toString), n.toString)
    over.set(true)
    reader.join()
    assert(wrong.isEmpty)
    assert(Files.readString(file) == "200")
    assert(names(file.getParent) == Set("2"))
  }

  test("what was to take the place of a file that is gone is put there") {
    val at = folder()
    Files.writeString(at.resolve(".2.redis_state"), "new")
    Files.writeString(at.resolve("3"), "there")
    Files.writeString(at.resolve(".3.redis_state"), "cut o")
    Files.writeString(at.resolve(".4.0a1b.tmp"), "Spark's")
    for (_ <- 1 to 2; name <- Seq("2", "3", "4", "none"))
      files.recover(new Path(at.resolve(name).toString))
    assert(names(at) == Set("2", "3", ".3.redis_state", ".4.0a1b.tmp"))
    assert(Files.readString(at.resolve("2")) == "new")
    files.write(new Path(at.resolve("3").toString), "newer")
    assert(names(at) == Set("2", "3", ".4.0a1b.tmp"))
  }
}
