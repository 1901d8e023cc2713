package org.apache.spark.sql.redisstate.system

import java.io.{BufferedReader, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Paths
import java.util.function.Function

import scala.collection.mutable

import org.apache.spark.sql.SparkSession

/**
 * The JVM of `tests/faults/system`: plays processes, each a class loader of its own, and does what
 * it is told, one command a line.
 *
 * Arguments: URL of the server, a folder of mutated classes or `-`.
 */
object SystemActor {
  def main(args: Array[String]): Unit = {
    val out = System.out
    System.setOut(System.err)
    val actor = new SystemActor(args(0), args(1))
    out.println("ok")
    val in = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    Iterator.continually(in.readLine()).takeWhile(_ != null).foreach { line =>
      out.println(actor.answer(line.split(' ')).replace('\n', ' '))
      out.flush()
    }
    System.exit(0)
  }
}

private final class SystemActor(url: String, mutants: String) {
  private final class Played(val user: String) {
    val loader =
      new ProcessLoader(getClass.getClassLoader, Option.when(mutants != "-")(Paths.get(mutants)))
    val body: Function[Array[String], String] = loader
      .loadClass("org.apache.spark.sql.redisstate.system.ProcessBody")
      .getConstructor(classOf[SparkSession], classOf[String], classOf[String])
      .newInstance(spark, url, user)
      .asInstanceOf[Function[Array[String], String]]
    val workers = mutable.HashMap.empty[String, Worker]
    def worker(thread: String): Worker = workers.getOrElseUpdate(
      thread, {
        val made = new Worker(s"$user-$thread", words => body(words))
        made.start()
        made
      })
  }

  private val spark: SparkSession = SparkSession
    .builder()
    .master("local[1]")
    .config("spark.hadoop.fs.file.impl", classOf[CheckpointFiles].getName)
    .config("spark.hadoop.fs.file.impl.disable.cache", "true")
    .config("spark.hadoop.fs.AbstractFileSystem.file.impl", classOf[CheckpointFs].getName)
    .getOrCreate()
  private val processes = mutable.HashMap.empty[String, Played]

  def answer(words: Array[String]): String = words match {
    case Array("process", name) =>
      processes(name) = new Played(name)
      "ok"
    case Array("files", kind) =>
      CheckpointFiles.kind = kind
      "ok"
    case Array("pad", bytes) =>
      Rows.padBytes = bytes.toInt
      "ok"
    case Array("run", name, thread, pauseAt, command @ _*) =>
      val process = processes(name)
      val said =
        process.worker(thread).tell(command.toArray, if (pauseAt == "-") "" else pauseAt)
      rested(process, said)
    case Array("resume", name, thread) =>
      val process = processes(name)
      rested(process, process.worker(thread).proceed())
    case Array("end", name, thread) =>
      processes(name).workers.remove(thread).foreach(_.kill())
      "ok"
    case Array("kill", name) =>
      processes.remove(name).foreach { process =>
        process.workers.values.foreach(_.kill())
        process.body(Array("drop"))
        Pools.end(process.loader)
      }
      "ok"
    case other => s"error UNKNOWN ${other.mkString(" ")}"
  }

  /** Waits until background work has ended, so that a seed is reproducible. */
  private def rested(process: Played, said: String): String =
    if (process.workers.values.exists(_.isPaused)) said
    else if (!Pools.of(process.loader).forall(_.rests(RestMs)))
      s"error HANG background work of ${process.user} does not end"
    else {
      val memory = process.body(Array("memory"))
      if (memory.startsWith("error")) s"error MEMORY $memory, after: $said" else said
    }

  private val RestMs = 30000L
}
