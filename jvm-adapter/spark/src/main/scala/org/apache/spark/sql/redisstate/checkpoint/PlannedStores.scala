package org.apache.spark.sql.redisstate.checkpoint

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}

import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.copy.CopiedStore

/**
 * Stores of a query as Spark has planned them: its metadata of each operator is there before the
 * first task.
 *
 * @param stateRoot the checkpoint's state folder
 */
private[redisstate] final class PlannedStores(stateRoot: String, hadoopConf: Configuration) {

  /** Partitions by operator and store; read once, since a run adds no store. */
  private lazy val planned: Map[(Long, String), Int] =
    OperatorMetadata.numbered(new Path(stateRoot), hadoopConf).flatMap { operator =>
      PlannedStores.metadata(stateRoot, operator, hadoopConf).toSeq
        .flatMap(PlannedStores.partitionsIn)
        .map { case (name, partitions) => (operator, name) -> partitions }
    }.toMap

  /**
   * Returns the number of partitions of all stores of the query. Stores that no task has listed yet
   * count as they are planned, so the first tasks of a query find the same number as later ones.
   *
   * @param own store of the caller
   * @param listed stores of the registry
   * @param tasks of the stage, for a store without metadata; 0 if that is not known
   */
  def partitions(own: StateStoreId, listed: Seq[CopiedStore], tasks: Int): Int = {
    val least = (own.operatorId, own.storeName) -> math.max(tasks, own.partitionId + 1)
    val known = listed.map(store => (store.operator, store.name) -> store.partitions)
    (Map(least) ++ planned ++ known).values.sum
  }
}

private[redisstate] object PlannedStores {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  /** Reads Spark's metadata of an operator; None where it keeps another kind of file. */
  def metadata(stateRoot: String, operator: Long, hadoopConf: Configuration): Option[JValue] =
    Try {
      val folder = new Path(stateRoot, operator.toString)
      OperatorMetadata.newest(folder, Long.MaxValue, hadoopConf)._2
    }.toOption

  /**
   * Returns the number of partitions that each store of an operator was planned with; an operator
   * that needs all rows together has one.
   */
  def partitionsIn(metadata: JValue): Map[String, Int] =
    (metadata \ "stateStoreInfo").children.flatMap { store =>
      for {
        name <- (store \ "storeName").extractOpt[String]
        partitions <- (store \ "numPartitions").extractOpt[Int]
      } yield name -> partitions
    }.toMap
}
