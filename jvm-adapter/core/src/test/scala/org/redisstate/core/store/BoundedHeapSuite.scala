package org.redisstate.core.store

import java.nio.file.Files
import java.util.concurrent.TimeUnit

import org.scalatest.funsuite.AnyFunSuite

/** States much larger than the heap, each in a JVM of its own. */
class BoundedHeapSuite extends AnyFunSuite {
  private val MinutesMax = 3L
  private val isLong = sys.env.get("REDIS_STATE_LONG").contains("1")

  private def ends(heapMib: Int, program: AnyRef, args: Any*): Unit = {
    val output = Files.createTempFile("bounded-heap", ".txt")
    val command = Seq(
      s"${sys.props("java.home")}/bin/java",
      s"-Xmx${heapMib}m",
      "-XX:TieredStopAtLevel=1",
      "-XX:+UseSerialGC",
      "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
      "-cp",
      sys.props("java.class.path"),
      program.getClass.getName.stripSuffix("$")
    ) ++ args.map(_.toString)
    val process = new ProcessBuilder(command: _*)
      .redirectErrorStream(true).redirectOutput(output.toFile).start()
    val ended = process.waitFor(MinutesMax, TimeUnit.MINUTES) && process.exitValue == 0
    process.destroy()
    val said = Files.readString(output)
    Files.delete(output)
    info(said.trim)
    assert(ended, said)
  }

  test("40 partitions of 8 MiB run in 8 MiB of a heap of 128 MiB") {
    ends(128, BoundedHeap, 40, 8, 8, "snapshot")
  }

  test("4 tasks fill 80 MiB each in a heap of 160 MiB a task") {
    ends(4 * 160, BoundedFill, 4, 80)
  }

  test("4 tasks fill 80 MiB each into files in a heap of 160 MiB a task") {
    ends(4 * 160, BoundedFill, 4, 80, "files")
  }

  if (isLong) {
    for (shape <- Seq("snapshot", "deltas"))
      test(s"a state of ten times the heap runs: $shape") {
        ends(256, BoundedHeap, 40, 64, 64, shape)
      }
  }
}
