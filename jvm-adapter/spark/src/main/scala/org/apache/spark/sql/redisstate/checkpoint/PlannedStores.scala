package org.apache.spark.sql.redisstate.checkpoint

import java.io.IOException
import java.nio.file.AccessDeniedException

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.hadoop.security.AccessControlException
import org.json4s.{DefaultFormats, JValue}

import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.copy.CopiedStore
import org.redisstate.core.errors.{ConfigException, FormatException, UnavailableException}
import org.redisstate.core.protocol.manifest.MemoryBound

/**
 * Stores of a query as Spark has planned them: its metadata of each operator is there before the
 * first task.
 *
 * @param stateRoot the checkpoint's state folder
 */
private[redisstate] final class PlannedStores(stateRoot: String, hadoopConf: Configuration) {

  /** Partitions by operator and store; read once, since a run adds no store. */
  private lazy val planned: Map[(Long, String), Int] =
    PlannedStores.answered(stateRoot) {
      OperatorMetadata.numbered(new Path(stateRoot), hadoopConf)
    }.flatMap { operator =>
      PlannedStores.metadata(stateRoot, operator, hadoopConf).toSeq
        .flatMap(PlannedStores.partitionsIn)
        .map { case (name, partitions) => (operator, name) -> partitions }
    }.toMap

  /**
   * Returns the share of a partition. Stores that no task has listed yet count as they are planned,
   * so the first tasks of a query find no larger share than later ones. Of an operator that needs
   * all rows together Spark plans as many partitions as of the others, and such an operator has one:
   * so what is only planned refuses no query.
   *
   * @param total option `redisMemory`
   * @param own store of the caller
   * @param listed stores of the registry
   * @param tasks of the stage, for a store that is not listed; 0 if that is not known
   * @throws org.redisstate.core.errors.ConfigException if the stores that exist have too many
   *   partitions
   * @throws org.redisstate.core.errors.UnavailableException if the folder does not answer
   */
  def share(total: Long, own: StateStoreId, listed: Seq[CopiedStore], tasks: Int): Long = {
    val store = (own.operatorId, own.storeName)
    val known = listed.map(one => (one.operator, one.name) -> one.partitions)
    def ofOwn(most: Int) = Map(store -> math.max(most, own.partitionId + 1))
    // A stage of a union has more tasks than the store has partitions.
    val fewest = planned.get(store).fold(tasks)(math.min(_, tasks))
    MemoryBound.shareOf(
      total,
      (ofOwn(fewest) ++ known).values.sum,
      (ofOwn(tasks) ++ planned ++ known).values.sum)
  }
}

private[redisstate] object PlannedStores {
  private implicit val formats: DefaultFormats.type = DefaultFormats

  /**
   * Reads Spark's metadata of an operator; None where it keeps another kind of file, or where this
   * process may not read it, which no later try changes.
   *
   * @throws UnavailableException if the folder does not answer: without the metadata the operator
   *   would be listed with the tasks of this stage
   */
  def metadata(stateRoot: String, operator: Long, hadoopConf: Configuration): Option[JValue] = {
    val folder = new Path(stateRoot, operator.toString)
    try Some(answered(folder.toString)(
        OperatorMetadata.newest(folder, Long.MaxValue, hadoopConf)._2))
    catch {
      case _: ConfigException | _: FormatException => None
      case e: UnavailableException if isDenied(e.getCause) => None
    }
  }

  private def isDenied(cause: Throwable): Boolean = cause match {
    case _: AccessControlException | _: AccessDeniedException => true
    case _ => false
  }

  private def answered[A](folder: String)(read: => A): A =
    try read
    catch {
      case e: IOException =>
        throw new UnavailableException(
          s"read how many partitions the stores in $folder have: the file system does not answer (${e.getMessage}). Nothing was " +
            "written. Check that the folder can be read here; Spark runs the task again.",
          e
        )
    }

  /** Returns the number of partitions that each store of an operator was planned with. */
  def partitionsIn(metadata: JValue): Map[String, Int] =
    (metadata \ "stateStoreInfo").children.flatMap { store =>
      for {
        name <- (store \ "storeName").extractOpt[String]
        partitions <- (store \ "numPartitions").extractOpt[Int]
      } yield name -> partitions
    }.toMap
}
