package org.apache.spark.sql.redisstate.copies

import java.util.UUID
import java.util.concurrent.{Executors, ExecutorService, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.redisstate.executor.{ExecutorRegistry, RegisteredStores}
import org.apache.spark.sql.redisstate.places.{FilesField, SegmentFolders}
import org.apache.spark.util.ShutdownHookManager

import org.redisstate.core.backend.RedisBackend
import org.redisstate.core.copy.{CopySource, UnneededFiles}
import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.protocol.RunRegistry

/**
 * Makes copies (backups) of a run's state in its checkpoint (option `copyEveryBatches`), on a
 * thread of the driver. No batch waits for a copy, and none fails with it: a failed copy is retried
 * with a later batch. After batch b, the copied version is at most b, the state with which batch b
 * began. Spark has logged the batch that wrote it, and every partition has opened it, so no other
 * attempt replaces it.
 *
 * @param gen id of the checkpoint
 */
private[redisstate] final class StateCopier(
    runId: UUID,
    gen: String,
    checkpoint: Path,
    hadoopConf: Configuration,
    conf: RedisStateConf,
    nowMs: () => Long = () => System.currentTimeMillis())
    extends Logging {
  import StateCopier._

  private val maker =
    new CopyMaker(gen, checkpoint, hadoopConf, nowMs, ms => Thread.sleep(ms))
  private val wanted = new AtomicLong
  @volatile private var copied = 0L
  @volatile private var retryAtNs: Option[Long] = None
  private val thread: ExecutorService = Executors.newSingleThreadExecutor { work =>
    val made = new Thread(work, s"redis-state-copy-$runId")
    made.setDaemon(true)
    made
  }

  /** Notes that Spark has logged a batch. */
  def batchDone(batch: Long): Unit = {
    val version = batch / conf.copyEveryBatches * conf.copyEveryBatches
    val isNew = wanted.getAndUpdate(math.max(_, version)) < version
    val again = version > copied && retryAtNs.exists(_ <= System.nanoTime())
    if (isNew || again) {
      retryAtNs = None
      thread.execute(() => copyIfDue())
    }
  }

  /**
   * Ends the copier with its run: a copy in progress is finished, and the end of the JVM waits a
   * while for it. The caller, Spark's listener bus, does not wait.
   */
  def finish(): Unit = {
    val hook =
      Try(ShutdownHookManager.addShutdownHook(BeforeSpark)(() => awaitEnd()))
    thread.execute(() => hook.foreach(ShutdownHookManager.removeShutdownHook))
    thread.shutdown()
    // The JVM is ending already.
    if (hook.isFailure) awaitEnd()
  }

  private def awaitEnd(): Unit =
    if (!thread.awaitTermination(FinishMaxMs, TimeUnit.MILLISECONDS)) {
      logWarning(s"The copy of version ${wanted.get} of $checkpoint was not finished")
    }

  /** Copies the newest requested version; skips older requests that came during the last copy. */
  private def copyIfDue(): Unit = {
    val version = wanted.get
    if (version > copied) {
      try {
        copy(version)
        copied = version
      } catch {
        case NonFatal(e) =>
          retryAtNs = Some(System.nanoTime() + RetryNs)
          logWarning(
            s"Version $version of the state of $checkpoint was not copied, a later batch tries again",
            e)
      }
    }
  }

  /**
   * Copies a version, unless a copy exists.
   *
   * @throws UnavailableException if the version cannot be copied now
   */
  private[copies] def copy(version: Long): Unit = {
    val copies = new StateCopies(checkpoint, hadoopConf)
    val offsets = copies.offsetsOf(version - 1).getOrElse(
      throw new UnavailableException(
        s"copy version $version of $checkpoint: its offset log has no batch ${version - 1} any more. " +
          "Raise spark.sql.streaming.minBatchesToRetain, or copy more often."))
    val backend = ExecutorRegistry.acquire(conf.connection)
    try {
      if (!copies.has(version, offsets)) copy(version, copies, offsets, backend)
      tidy(backend)
    } finally ExecutorRegistry.release(conf.connection)
  }

  private def copy(
      version: Long,
      copies: StateCopies,
      offsets: String,
      backend: RedisBackend): Unit = {
    val began = System.nanoTime()
    val root = new Path(checkpoint, "state").toString
    val folders = SegmentFolders.of(root, hadoopConf, conf, backend, gen)
    val source = new CopySource(backend, conf.keyPrefix, gen, conf.signer(), Some(folders))
    val query = source.query()
    val parts = source.parts(RegisteredStores.of(gen, query), runId.toString, version)
    if (parts.isEmpty && copies.hasAny) {
      throw new UnavailableException(
        s"copy version $version of $checkpoint: the registry in Redis no longer lists the stores of this checkpoint. Start " +
          "the query again, which registers them again; then find out why keys are missing from that Redis.")
    }
    if (parts.nonEmpty) {
      val head = CopyHead(
        gen,
        version,
        runId.toString,
        nowMs(),
        offsets,
        query,
        maker.address,
        folders.addressOutside)
      val files = maker.make(head, source, parts, conf.signer())
      logInfo(
        s"Copied version $version of the state of $checkpoint: ${parts.size} partitions, $files new files, in " +
          s"${(System.nanoTime() - began) / 1000000L} ms")
      tell(new RunRegistry(backend, conf.keyPrefix, gen), version)
    }
  }

  /**
   * Removes unneeded copies and files. A failure leaves them to the next copy, and does not undo
   * this one.
   */
  private def tidy(backend: RedisBackend): Unit =
    try maker.tidy(new UnneededFiles(backend, conf.keyPrefix, _, graceMs(backend)))
    catch {
      case NonFatal(e) =>
        logWarning(s"Older copies of the state of $checkpoint, or their files, stay for now", e)
    }

  private def graceMs(backend: RedisBackend): Long =
    new RunRegistry(backend, conf.keyPrefix, gen).files
      .fold(DefaultGraceMs)(FilesField.parsed(gen, _).graceMs)

  /** Reports the age of the newest copy to Redis; the copy is complete even without the report. */
  private def tell(registry: RunRegistry, version: Long): Unit =
    try registry.alive(runId.toString, copied = Some(version))
    catch {
      case NonFatal(e) => logWarning(s"The copy of version $version could not be recorded", e)
    }
}

private[redisstate] object StateCopier {
  private val FinishMaxMs = 60000L
  private val BeforeSpark = ShutdownHookManager.SPARK_CONTEXT_SHUTDOWN_PRIORITY + 1
  private val DefaultGraceMs = TimeUnit.DAYS.toMillis(1)
  private val RetryNs = 60L * 1000 * 1000 * 1000
}
