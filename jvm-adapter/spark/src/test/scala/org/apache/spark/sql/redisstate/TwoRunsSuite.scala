package org.apache.spark.sql.redisstate

import java.nio.file.Files
import java.util.UUID
import java.util.concurrent.{Callable, Executors, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.redisstate.checkpoint.SteppedFileSystem

import org.redisstate.core.RedisServerProcess

/** Providers of two runs in the first batch of one checkpoint. */
class TwoRunsSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness._

  override def afterAll(): Unit = server.close()

  private def placed(scheme: String): StateStoreId =
    StateStoreId(
      s"$scheme:${Files.createTempDirectory("two-runs").resolve("state")}",
      0L,
      0)

  private def provider(
      id: StateStoreId,
      run: UUID,
      by: ProviderHarness = harness): RedisStateStoreProvider = {
    val made = new RedisStateStoreProvider
    by.initialize(made, id, run, families = false, hadoop = SteppedFileSystem.settings)
    made
  }

  for (scheme <- SteppedFileSystem.Schemes)
    test(s"what the second run commits is read by everybody: $scheme") {
      val id = placed(scheme)
      val (first, second) = (provider(id, UUID.randomUUID()), provider(id, UUID.randomUUID()))
      val zombie = first.getStore(0)
      val task = second.getStore(0)
      put(zombie, "zombie" -> 1)
      val e = intercept[Exception](put(task, "a" -> 1))
      assert(e.getMessage.contains("[REDIS_FENCED]") && e.getMessage.contains("has gen"))
      task.abort()
      for (version <- 0 until 5) commit(second, version.toLong, s"k$version" -> version)
      val expected = (0 until 5).map(v => s"k$v" -> v).toMap
      assert(read(provider(id, UUID.randomUUID()), 5) == expected)
      assert(Try(zombie.commit()).isFailure)
      assert(read(provider(id, UUID.randomUUID()), 5) == expected)
      Seq(first, second).foreach(_.close())
    }

  test("the first tasks of a run agree, whoever is first") {
    val id = placed("file")
    val run = UUID.randomUUID()
    val threads = Executors.newFixedThreadPool(8)
    val work = (0 until 8).map(partition =>
      new Callable[Long] {
        def call(): Long = {
          // Spark's encoders are for one thread.
          val own = new ProviderHarness(server.url)
          val made = provider(id.copy(partitionId = partition), run, own)
          try own.commit(made, 0, "a" -> partition)
          finally made.close()
        }
      })
    try
      threads.invokeAll(work.asJava).asScala.foreach(f => assert(f.get(60, TimeUnit.SECONDS) == 1))
    finally threads.shutdown()
    for (partition <- 0 until 8) {
      val made = provider(id.copy(partitionId = partition), UUID.randomUUID())
      assert(read(made, 1) == Map("a" -> partition))
    }
  }
}
