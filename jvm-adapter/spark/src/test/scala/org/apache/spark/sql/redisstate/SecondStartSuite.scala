package org.apache.spark.sql.redisstate

import java.nio.file.{Files, Path}
import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.MarkerFile

import org.redisstate.core.{RedisServerProcess, TestConnection}
import org.redisstate.core.protocol.RunRegistry

/**
 * Tasks of two drivers that both live, beside a commit log as Spark writes it (docs/format.md,
 * section 3.2).
 */
class SecondStartSuite extends AnyFunSuite with BeforeAndAfterAll {
  private lazy val server = new RedisServerProcess
  private lazy val harness = new ProviderHarness(server.url)
  import harness.{put, rows}

  override def afterAll(): Unit = server.close()

  /** A query that runs: versions 0 to 3 are opened, batches 0 to 2 are in the log, and 3 is under way. */
  private final class Query(format: Int) {
    private val folder = Files.createTempDirectory("second-start")
    private val log: Path = Files.createDirectory(folder.resolve("commits"))
    val id: StateStoreId = StateStoreId(folder.resolve("state").toString, 0L, 0)
    private val versions = scala.collection.mutable.Map.empty[Long, StateStoreCheckpointInfo]
    val firstRun: UUID = UUID.randomUUID()
    val first: RedisStateStoreProvider = driver(firstRun)
    for (batch <- 0L to 2L) {
      write(first, batch, "a" -> batch.toInt)
      logs(batch)
    }

    def driver(run: UUID): RedisStateStoreProvider = {
      val made = harness.provider(
        id,
        run,
        options = Map(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key -> format.toString))
      inRegistry(_.register(run.toString, true, 0, Map.empty))
      made
    }

    /** Nothing happens before the first version: there is no marker yet. */
    def inRegistry(use: RunRegistry => Any): Unit =
      new MarkerFile(id.checkpointRootLocation, new Configuration).read().foreach { marker =>
        val backend = TestConnection.backend(server.url)
        try use(new RunRegistry(backend, "", marker.gen)): Unit
        finally backend.close()
      }

    def open(by: RedisStateStoreProvider, version: Long): StateStore =
      by.getStore(version, versions.get(version).flatMap(_.stateStoreCkptId))

    /**
     * Commits `version + 1`; the commit of `by` is logged if no other provider committed it before.
     */
    def write(by: RedisStateStoreProvider, version: Long, puts: (String, Int)*): Unit = {
      val store = open(by, version)
      put(store, puts: _*)
      store.commit()
      versions.getOrElseUpdate(version + 1, store.getStateStoreCheckpointInfo())
      ()
    }

    def logs(batch: Long): Unit = {
      Files.createFile(log.resolve(batch.toString))
      ()
    }

    def takenBackTo(batch: Long): Unit =
      log.toFile.listFiles().filter(_.getName.toLong > batch).foreach(_.delete())

    def read(version: Long): Map[String, Int] =
      rows(driver(UUID.randomUUID()).getReadStore(
        version,
        versions.get(version).flatMap(_.stateStoreCkptId)))
  }

  for (format <- Seq(1, 2)) {
    test(s"a start that comes too late is told by whom, in format $format") {
      val query = new Query(format)
      val second = query.driver(UUID.randomUUID())
      query.write(query.first, 3, "a" -> 3)
      query.logs(3)
      query.write(query.first, 4, "a" -> 4)
      val store = query.open(second, 3)
      val e = intercept[Exception](put(store, "a" -> 70))
      assert(e.getMessage.contains("[REDIS_FENCED]"))
      assert(e.getMessage.contains(s"run ${query.firstRun} holds the partition"))
      assert(e.getMessage.contains("this start lost"))
      query.logs(4)
      query.write(query.first, 5, "a" -> 5)
      assert(query.read(5) == Map("a" -> 4))
    }

    test(s"who logs a batch that both have committed goes on, in format $format") {
      val query = new Query(format)
      query.write(query.first, 3, "a" -> 3)
      val second = query.driver(UUID.randomUUID())
      query.write(second, 3, "a" -> 70)
      query.logs(3)
      query.write(query.first, 4, "b" -> 4)
      val e = intercept[Exception](put(query.open(second, 3), "a" -> 71))
      assert(e.getMessage.contains(s"run ${query.firstRun} of the query holds"))
      query.logs(4)
      query.write(query.first, 5, "b" -> 5)
      query.logs(5)
      val third = query.driver(UUID.randomUUID())
      query.write(third, 6, "c" -> 6)
      assert(query.read(7) == Map("a" -> 3, "b" -> 5, "c" -> 6))
    }

    test(s"whoever opens partitions that have moved writes nothing, in format $format") {
      val query = new Query(format)
      query.inRegistry(_.move("f" * 32))
      // As of a task that an older look-up of the marker files has led here: nobody registered its run.
      val misled = harness.provider(
        query.id,
        UUID.randomUUID(),
        options = Map(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key -> format.toString))
      for (by <- Seq(misled, query.driver(UUID.randomUUID()))) {
        val e = intercept[Exception](put(query.open(by, 3), "a" -> 70))
        assert(e.getMessage.contains("[REDIS_FENCED]"))
        assert(e.getMessage.contains("the number of partitions of its checkpoint has changed"))
      }
      assert(query.read(3) == Map("a" -> 2))
    }

    test(s"a query that was taken back goes on, in format $format") {
      val query = new Query(format)
      query.write(query.first, 3, "a" -> 3)
      query.takenBackTo(0)
      val later = query.driver(UUID.randomUUID())
      val store = query.open(later, 1)
      put(store, "a" -> 70)
      assert(store.commit() == 2)
    }
  }
}
