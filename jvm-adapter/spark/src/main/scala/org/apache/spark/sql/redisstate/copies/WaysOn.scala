package org.apache.spark.sql.redisstate.copies

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.redisstate.conf.RedisStateConf

import org.redisstate.core.errors.{RedisStateException, StateLostException}

/**
 * Ways to recover when Redis does not have what a checkpoint needs: commands that can be run as
 * they stand.
 */
private[redisstate] object WaysOn {

  /** Returns advice after an error; none for an error that names its own. */
  def after(
      e: RedisStateException,
      id: StateStoreId,
      conf: RedisStateConf,
      hadoopConf: Configuration): String = e match {
    case lost: StateLostException if !lost.isPurged =>
      val checkpoint = Option(new Path(id.checkpointRootLocation).getParent)
        .getOrElse(new Path(id.checkpointRootLocation))
      val hasCopies = Try(new StateCopies(checkpoint, hadoopConf).hasAny).getOrElse(false)
      lostState(place(checkpoint), conf, hasCopies)
    case _ => ""
  }

  private def lostState(place: String, conf: RedisStateConf, hasCopies: Boolean): String = {
    val restore =
      if (!hasCopies) ""
      else
        s" The checkpoint has a copy of the state: `redis-state restore $place --yes${options(conf)}` brings it back."
    s"Keep the checkpoint folder. Run `redis-state doctor $place${options(conf)}`: it changes nothing, and prints from " +
      s"which batch the query can continue, and how.$restore Or restore the data of that Redis, and start the query again."
  }

  /**
   * Returns the checkpoint's address for the tools, which read other file systems by the address
   * that the query has.
   */
  private def place(checkpoint: Path): String = {
    val isLocal = Option(checkpoint.toUri.getScheme).forall(_ == "file")
    s"--checkpoint ${quoted(if (isLocal) checkpoint.toUri.getPath else checkpoint.toString)}"
  }

  private def options(conf: RedisStateConf): String =
    conf.forTools.map { case (name, value) => s" --$name ${quoted(value)}" }.mkString

  private def quoted(text: String): String =
    if (text.matches("[A-Za-z0-9_./:,@%+=-]+")) text else s"'${text.replace("'", "'\\''")}'"
}
