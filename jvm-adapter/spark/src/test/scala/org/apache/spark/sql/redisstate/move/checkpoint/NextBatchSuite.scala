package org.apache.spark.sql.redisstate.move.checkpoint

import java.nio.file.{Files, Path => LocalPath}

import org.apache.hadoop.fs.Path
import org.json4s.JObject
import org.json4s.JsonDSL._
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.checkpoint.SteppedFileSystem

/** The batch that a change of a checkpoint plans, beside other runs of its query. */
class NextBatchSuite extends AnyFunSuite {
  private val entry = LogEntry("v1", ("by" -> "the change"): JObject, Seq("-"))

  private final class Checkpoint {
    private val folder = Files.createTempDirectory("next-batch")
    Seq("offsets", "commits").foreach(log => Files.createDirectory(folder.resolve(log)))
    log("offsets", 5)
    log("commits", 5)

    def log(name: String, batches: Int*): Unit =
      batches.foreach(batch => Files.writeString(file(name, batch), "another run's"))

    def remove(name: String, batch: Int): Unit = Files.delete(file(name, batch))

    def file(name: String, batch: Int): LocalPath = folder.resolve(s"$name/$batch")

    /** @param at called before each step of a file, with what it is */
    def plan(at: String => Unit): Boolean = {
      SteppedFileSystem.step = at
      try NextBatch.plan(
          QueryCheckpoint(new Path(s"names:$folder"), "id", 5, entry, entry),
          entry,
          SteppedFileSystem.conf)
      finally SteppedFileSystem.step = _ => ()
    }
  }

  test("it is planned where nobody else is") {
    val checkpoint = new Checkpoint
    assert(checkpoint.plan(_ => ()))
    assert(Files.readString(checkpoint.file("offsets", 6)) == entry.text)
    assert(!checkpoint.plan(_ => ()), "it is not the next one any more")
  }

  test("another run's plan stays") {
    val checkpoint = new Checkpoint
    assert(!checkpoint.plan(step => if (step == "rename 6") checkpoint.log("offsets", 6)))
    assert(Files.readString(checkpoint.file("offsets", 6)) == "another run's")
  }

  test("a batch that another run has left behind is not planned anew") {
    val checkpoint = new Checkpoint
    assert(!checkpoint.plan(step =>
      if (step == "rename 6") {
        checkpoint.remove("offsets", 5)
        checkpoint.remove("commits", 5)
        Seq("offsets", "commits").foreach(checkpoint.log(_, 8, 9))
      }))
    assert(Files.notExists(checkpoint.file("offsets", 6)))
  }

  test("what another start has gone on from stays") {
    val checkpoint = new Checkpoint
    var isThere = false
    assert(checkpoint.plan { step =>
      if (step == "open 6" && isThere) {
        checkpoint.log("offsets", 7)
        checkpoint.log("commits", 6, 7)
      }
      isThere |= step == "rename 6"
    })
    assert(Files.readString(checkpoint.file("offsets", 6)) == entry.text)
  }
}
