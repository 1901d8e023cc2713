package org.apache.spark.sql.redisstate.executor

import scala.util.Try

import org.json4s.{DefaultFormats, JValue}
import org.json4s.jackson.JsonMethods

import org.redisstate.core.copy.{CopiedStore, CopySource}
import org.redisstate.core.errors.FormatException

/** The stores of a query, as its registry describes them (docs/format.md, section 9). */
private[redisstate] object RegisteredStores {
  private val StoreField = s"(?s)${CopySource.StorePrefix}([0-9]{1,18}):(.*)".r

  /**
   * @param gen id of the checkpoint
   * @param query fields of the registry
   * @throws FormatException if one is damaged
   */
  def of(gen: String, query: Map[String, String]): Seq[CopiedStore] =
    query.toSeq.sortBy(_._1).collect { case (StoreField(operator, name), described) =>
      val partitions = partitionsIn(described).filter(_ >= 0).getOrElse(
        throw new FormatException(
          s"read the registry of checkpoint $gen: the description of operator $operator cannot be read"))
      CopiedStore(operator.toLong, name, partitions)
    }

  /** Number of partitions in the description of a store; None if it cannot be read. */
  def partitionsIn(described: String): Option[Int] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    Try((JsonMethods.parse(described): JValue) \ "partitions").toOption.flatMap(_.extractOpt[Int])
  }
}
