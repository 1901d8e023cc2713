package org.apache.spark.sql.redisstate.system

import scala.collection.mutable

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.expressions.AttributeReference
import org.apache.spark.sql.catalyst.plans.logical.{Deduplicate, LocalRelation}
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CommitLog,
  OffsetSeq,
  OffsetSeqMetadata
}
import org.apache.spark.sql.execution.streaming.runtime.{LongOffset, MicroBatchExecution}
import org.apache.spark.sql.execution.streaming.sources.MemorySink
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.{RedisStateQueryListener, RedisStateStoreProvider}
import org.apache.spark.sql.redisstate.conf.RedisStateConf
import org.apache.spark.sql.streaming._
import org.apache.spark.sql.types.StringType
import org.apache.spark.util.SystemClock

/**
 * The driver's side of queries: Spark's own execution, which is told of but never run, with its
 * logs, and our listener.
 */
private[system] final class ProcessDriver(spark: SparkSession, options: Map[String, String]) {
  private val key = AttributeReference("k", StringType)()

  /** One that keeps state. */
  private val plan = Deduplicate(Seq(key), LocalRelation(Seq(key), Nil, isStreaming = true))

  private final class Job(
      val listener: StreamingQueryListener,
      val session: classic.SparkSession,
      val query: MicroBatchExecution)

  /** Each query clones it. */
  private lazy val session = spark.newSession().asInstanceOf[classic.SparkSession]
  private val jobs = mutable.HashMap.empty[String, Job]

  def run(words: Array[String]): String = words match {
    case Array("start", name, checkpoint, format, rest @ _*) =>
      val job = made(name, checkpoint, format, rest)
      jobs(name) = job
      known(job) {
        job.listener.onQueryStarted(
          new StreamingQueryListener.QueryStartedEvent(
            job.query.id,
            job.query.runId,
            name,
            "2026-01-01T00:00:00.000Z"))
      }
      s"${job.query.runId} ${job.query.id}"
    case Array("logs", name) => logs(jobs(name).query)
    case Array("offset", name, batch, token) =>
      val query = jobs(name).query
      val metadata = OffsetSeqMetadata(
        0,
        batch.toLong,
        Map(SQLConf.STATE_STORE_PROVIDER_CLASS.key ->
          classOf[RedisStateStoreProvider].getName))
      if (!query.offsetLog.add(
          batch.toLong,
          OffsetSeq(Seq(Some(LongOffset(token.toLong))), Some(metadata))))
        throw new IllegalStateException("CONCURRENT_STREAM_LOG_UPDATE")
      ""
    case Array("done", name, batch, uids) =>
      val query = jobs(name).query
      val ids = Option.when(uids != "-")(Map(0L -> uids.split(',').map(Array(_))))
      val version = if (ids.isEmpty) CommitLog.VERSION_1 else CommitLog.VERSION_2
      val metadata =
        query.commitLog.createMetadata(stateUniqueIds = ids, commitLogFormatVersion = version)
      if (!query.commitLog.add(batch.toLong, metadata))
        throw new IllegalStateException("CONCURRENT_STREAM_LOG_UPDATE")
      ""
    case Array("progress", name, batch) =>
      jobs(name).listener.onQueryProgress(progress(jobs(name).query, batch.toLong))
      ""
    case Array("stop", name) =>
      jobs.remove(name).foreach { job =>
        known(job) {
          job.listener.onQueryTerminated(
            new StreamingQueryListener.QueryTerminatedEvent(job.query.id, job.query.runId, None))
        }
      }
      ""
    case other => throw new IllegalArgumentException(other.mkString(" "))
  }

  private def made(
      name: String,
      checkpoint: String,
      format: String,
      more: Seq[String]): Job = {
    val conf = session.sessionState.conf
    conf.getAllConfs.keys.filter(_.startsWith(RedisStateConf.Prefix)).foreach(conf.unsetConf)
    (options ++ more.map(ProcessBody.option)).foreach { case (key, value) =>
      conf.setConfString(key, value)
    }
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[RedisStateStoreProvider].getName)
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format.toInt)
    val sinking = WriteToStream(
      name,
      None,
      checkpoint,
      new MemorySink,
      OutputMode.Update(),
      deleteCheckpointOnStop = false,
      plan,
      None,
      None)
    SparkSession.setActiveSession(session)
    val query =
      new MicroBatchExecution(
        session,
        Trigger.ProcessingTime(0),
        new SystemClock,
        Map.empty,
        sinking)
    new Job(new RedisStateQueryListener, session, query)
  }

  /** As Spark tells it behind its commit log. */
  private def progress(query: MicroBatchExecution, batch: Long) =
    new StreamingQueryListener.QueryProgressEvent(
      new StreamingQueryProgress(
        query.id,
        query.runId,
        query.name,
        "2026-01-01T00:00:00.000Z",
        batch,
        0L,
        java.util.Collections.emptyMap(),
        java.util.Collections.emptyMap(),
        Array.empty,
        Array.empty,
        new SinkProgress("memory"),
        java.util.Collections.emptyMap()
      ))

  /** While Spark knows the query as one that is active. */
  private def known(job: Job)(work: => Unit): Unit = {
    val active = job.session.sharedState.activeStreamingQueries
    active.put(job.query.id, job.query)
    SparkSession.setActiveSession(job.session)
    try work
    finally {
      active.remove(job.query.id)
      SparkSession.clearActiveSession()
    }
  }

  /** `<newest batch> <its token> <newest commit> <uids of each partition>`, `-` for what is not there. */
  private def logs(query: MicroBatchExecution): String = {
    val offset = query.offsetLog.getLatest()
    val commit = query.commitLog.getLatest()
    val token = offset.flatMap(_._2.offsets.head).map(_.json).getOrElse("-")
    val uids = commit.flatMap(_._2.stateUniqueIds).fold("-")(_(0L).map(_.head).mkString(","))
    s"${offset.fold("-")(_._1.toString)} $token ${commit.fold("-")(_._1.toString)} $uids"
  }
}
