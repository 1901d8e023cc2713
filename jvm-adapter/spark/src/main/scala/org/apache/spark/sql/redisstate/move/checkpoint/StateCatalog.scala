package org.apache.spark.sql.redisstate.move.checkpoint

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, JValue}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.redisstate.checkpoint.OperatorMetadata
import org.apache.spark.sql.redisstate.checkpoint.OperatorMetadata.{numbered, unreadable}
import org.apache.spark.sql.redisstate.move.engine.{FamilySpec, StoreSpec}

import org.redisstate.core.errors.{ConfigException, RedisStateException}

/** The operators and stores of a checkpoint, from Spark's operator metadata and schema files. */
private[redisstate] object StateCatalog {
  private implicit val formats: DefaultFormats.type = DefaultFormats
  private val ListState = "ListState"
  private val Join = "symmetricHashJoin"

  /** Families that only hold lists, in Spark's join state format 4. */
  private val JoinLists = for {
    side <- Set("left", "right")
    kind <- Set("keyWithTsToValues", "tsWithKey")
  } yield s"$side-$kind"

  /**
   * @throws ConfigException without operator metadata, or with other partitions than it says
   * @throws org.redisstate.core.errors.FormatException if a file of Spark's cannot be read
   */
  def read(checkpoint: QueryCheckpoint, hadoopConf: Configuration): Seq[StoreSpec] = {
    val operators = numbered(checkpoint.stateRoot, hadoopConf)
    if (operators.isEmpty) {
      throw new ConfigException(
        s"move the state of ${checkpoint.folder}: its query has no state of Spark's operators. " +
          "The state of Python stores is not part of this folder. Nothing was changed.")
    }
    operators.flatMap(operator => storesOf(checkpoint, operator, hadoopConf))
  }

  private def storesOf(
      checkpoint: QueryCheckpoint,
      operator: Long,
      hadoopConf: Configuration): Seq[StoreSpec] = {
    val folder = new Path(checkpoint.stateRoot, operator.toString)
    val (file, metadata) = OperatorMetadata.newest(folder, checkpoint.batch, hadoopConf)
    val stores =
      try (metadata \ "stateStoreInfo").children.map { store =>
          val found = storeOf(checkpoint, operator, metadata, store, hadoopConf)
          if (found.isSingle) found.copy(partitions = 1) else found
        }
      catch {
        case e: RedisStateException => throw e
        case NonFatal(e) => throw unreadable(file, e)
      }
    stores.headOption.foreach(store => checkPartitions(folder, store, hadoopConf))
    stores
  }

  private def storeOf(
      checkpoint: QueryCheckpoint,
      operator: Long,
      metadata: JValue,
      store: JValue,
      hadoopConf: Configuration): StoreSpec = {
    val operatorName = (metadata \ "operatorInfo" \ "operatorName").extract[String]
    val properties = (metadata \ "operatorPropertiesJson").extractOpt[String].getOrElse("")
    val name = (store \ "storeName").extract[String]
    val prefix = (store \ "numColsPrefixKey").extract[Int]
    val files = (store \ "stateSchemaFilePaths").extractOpt[List[String]].getOrElse(Nil)
      .map(path => schemaFile(checkpoint.stateRoot, operator, new Path(path)).toString)
    val newest = files.lastOption.map(new Path(_)).getOrElse(StoreSchema.file(
      StateStoreId(
        checkpoint.stateRoot.toString,
        operator,
        StateStore.PARTITION_ID_TO_CHECK_SCHEMA,
        name)))
    val lists = listsOf(properties)
    val families = familiesOf(newest, hadoopConf).map { family =>
      val encoder = family.keyStateEncoderSpec.getOrElse {
        if (prefix > 0) PrefixKeyScanStateEncoderSpec(family.keySchema, prefix)
        else NoPrefixKeyStateEncoderSpec(family.keySchema)
      }
      FamilySpec(
        family.colFamilyName,
        family.keySchema,
        family.valueSchema,
        encoder,
        lists(family.colFamilyName) || JoinLists(family.colFamilyName))
    }
    StoreSpec(
      operator,
      operatorName,
      properties,
      formatOf(operatorName, checkpoint.conf),
      name,
      (store \ "numPartitions").extract[Int],
      families.sortBy(_.name),
      Option.when(files.nonEmpty)(StateSchemaMetadata.createStateSchemaMetadata(
        checkpoint.stateRoot.toString,
        hadoopConf,
        files))
    )
  }

  /** Spark names them with the path that the checkpoint had; it may have moved since then. */
  def schemaFile(stateRoot: Path, operator: Long, named: Path): Path = {
    val within = named.toString.split(s"/state/$operator/").last
    new Path(new Path(stateRoot, operator.toString), within)
  }

  private def familiesOf(file: Path, hadoopConf: Configuration): Seq[StateStoreColFamilySchema] =
    try StateSchemaCompatibilityChecker.readSchemaFile(file.getFileSystem(hadoopConf).open(file))
    catch { case NonFatal(e) => throw unreadable(file, e) }

  private def listsOf(properties: String): Set[String] =
    if (properties.isEmpty) Set.empty
    else {
      ((parse(properties): JValue) \ "stateVariables").children.collect {
        case variable if (variable \ "stateVariableType").extractOpt[String].contains(ListState) =>
          (variable \ "stateName").extract[String]
      }.toSet
    }

  private def formatOf(operator: String, conf: Map[String, String]): Option[Int] =
    Option.when(operator == Join)(SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key)
      .flatMap(conf.get).flatMap(_.toIntOption)

  private def checkPartitions(
      operator: Path,
      store: StoreSpec,
      hadoopConf: Configuration): Unit = {
    val found = numbered(operator, hadoopConf)
    if (found != (0L until store.partitions.toLong)) {
      throw new ConfigException(
        s"move the state of $operator: its metadata has ${store.partitions} partitions, but its folder has " +
          s"${if (found.isEmpty) "none" else s"${found.size}, the last one is ${found.last}"}. The checkpoint was copied in part, " +
          "or files of another query are in it. Restore the whole folder from a backup. Nothing was changed.")
    }
  }
}

/** Path of the schema of a store whose operator metadata does not name it. */
private[redisstate] object StoreSchema {
  def file(id: StateStoreId): Path = new Path(id.storeCheckpointLocation(), "_metadata/schema")
}
