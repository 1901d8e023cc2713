package org.apache.spark.sql.redisstate.rows

import java.util.concurrent.ConcurrentHashMap

import scala.util.Try

import org.json4s.{JArray, JInt, JObject, JString, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.avro.SchemaConverters
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DataType, StructType}

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format.Family

/** Encoding of rows' columns: Spark's conf `spark.sql.streaming.stateStore.encodingFormat`. */
private[redisstate] sealed trait RowEncoding {

  /** The text of a schema in the description of a family (docs/format.md, section 4.5). */
  def describe(schema: StructType, family: String, isKey: Boolean): String

  /** Returns the encoder; None where rows are stored as they are. */
  def encoder(
      spec: KeyStateEncoderSpec,
      valueSchema: StructType,
      family: String): Option[AvroStateEncoder]
}

private[redisstate] object RowEncoding {
  private val TextsMax = 1000

  /** Rows as Spark has them in memory. */
  case object Plain extends RowEncoding {
    private val texts = new ConcurrentHashMap[StructType, String]

    /** Returns the cached text of a schema: each batch declares its families again. */
    override def describe(schema: StructType, family: String, isKey: Boolean): String = {
      if (texts.size >= TextsMax) texts.clear()
      texts.computeIfAbsent(schema, _.json)
    }
    override def encoder(
        spec: KeyStateEncoderSpec,
        valueSchema: StructType,
        family: String): Option[AvroStateEncoder] = None
  }

  /** Spark's Avro encoder. The id in front of a row names the schema that it was written with. */
  final case class Avro(schemas: Option[StateSchemaProvider]) extends RowEncoding {
    override def describe(schema: StructType, family: String, isKey: Boolean): String = {
      val known = schemas.flatMap(s => Try(s.getCurrentStateSchemaId(family, isKey)).toOption)
      val all = known.toSeq.flatMap { current =>
        (0 to current.toInt).flatMap { id =>
          val key = StateSchemaMetadataKey(family, id.toShort, isKey)
          Try(schemas.get.getSchemaMetadataValue(key).sqlSchema).toOption.map(id -> _)
        }
      }
      AvroSchemas(schema, all).text
    }

    override def encoder(
        spec: KeyStateEncoderSpec,
        valueSchema: StructType,
        family: String): Option[AvroStateEncoder] =
      Some(new AvroStateEncoder(spec, valueSchema, schemas, family))
  }

  /** Returns the encoding that the settings of a provider select. */
  def of(conf: StateStoreConf, schemas: Option[StateSchemaProvider]): RowEncoding =
    if (conf.stateStoreEncodingFormat == StateStoreEncoding.Avro.toString) Avro(schemas) else Plain

  /** Returns the encoding of a family as a version describes it. */
  def of(family: Family): RowEncoding =
    if (!isAvro(family)) Plain
    else {
      val entries = Seq(true -> family.keySchema, false -> family.valueSchema).flatMap {
        case (isKey, text) => AvroSchemas.read(text).written.map { case (id, schema) =>
            StateSchemaMetadataKey(family.name, id.toShort, isKey) ->
              StateSchemaMetadataValue(schema, SchemaConverters.toAvroTypeWithDefaults(schema))
          }
      }
      Avro(Some(new InMemoryStateSchemaProvider(StateSchemaMetadata(entries.toMap))))
    }

  def isAvro(family: Family): Boolean = AvroSchemas.isOne(family.valueSchema)

  /** Key and value columns of a family as they are now. */
  def schemas(family: Family): (StructType, StructType) =
    (current(family.keySchema), current(family.valueSchema))

  private def current(text: String): StructType =
    if (AvroSchemas.isOne(text)) AvroSchemas.read(text).current
    else DataType.fromJson(text).asInstanceOf[StructType]
}

/**
 * Avro schemas of a family's keys or values.
 *
 * @param written by schema id, those that rows may have been written with
 */
private[redisstate] final case class AvroSchemas(
    current: StructType,
    written: Seq[(Int, StructType)]) {
  import AvroSchemas._

  def text: String = {
    val byId = JArray(written.sortBy(_._1).map { case (id, schema) =>
      JArray(List(JInt(id), parse(schema.json)))
    }.toList)
    compact(render(("type" -> Type) ~ ("schema" -> parse(current.json)) ~ ("written" -> byId)))
  }
}

private[redisstate] object AvroSchemas {
  private val Type = "redis-state.avro"

  /** Text is written by `compact`, and by no other. */
  private val Opening = s"""{"type":"$Type","""

  def isOne(text: String): Boolean = text.startsWith(Opening)

  def read(text: String): AvroSchemas = parse(text) match {
    case all: JObject =>
      val written = all \ "written" match {
        case JArray(entries) => entries.map {
            case JArray(List(JInt(id), schema)) => id.toInt -> struct(schema)
            case _ => throw unreadable
          }
        case _ => throw unreadable
      }
      if (all \ "type" != JString(Type)) throw unreadable
      AvroSchemas(struct(all \ "schema"), written)
    case _ => throw unreadable
  }

  private def struct(schema: JValue): StructType =
    DataType.fromJson(compact(render(schema))) match {
      case columns: StructType => columns
      case _ => throw unreadable
    }

  private def unreadable = new FormatException("the schemas of a column family cannot be read")
}
