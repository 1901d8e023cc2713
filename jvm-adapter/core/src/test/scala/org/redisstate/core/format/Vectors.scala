package org.redisstate.core.format

import java.io.File
import java.nio.file.Files

import scala.jdk.CollectionConverters._

import com.google.gson.{JsonElement, JsonObject, JsonParser}

/** The files of tests/vectors, which every implementation reads. */
object Vectors {
  private val folder: File = Iterator
    .iterate(new File(".").getCanonicalFile)(_.getParentFile)
    .takeWhile(_ != null)
    .map(new File(_, "tests/vectors"))
    .find(new File(_, "blocks.json").isFile)
    .getOrElse(throw new IllegalStateException("tests/vectors is not above the working folder"))

  def read(name: String): JsonElement =
    JsonParser.parseString(Files.readString(new File(folder, s"$name.json").toPath))

  def items(of: JsonElement): Seq[JsonElement] = of.getAsJsonArray.asScala.toSeq
  def objects(of: JsonElement): Seq[JsonObject] = items(of).map(_.getAsJsonObject)
  def text(of: JsonObject, name: String): String = of.get(name).getAsString
  def bytes(of: JsonElement): Array[Byte] = fromHex(of.getAsString)
  def bytes(of: JsonObject, name: String): Array[Byte] = fromHex(text(of, name))

  def fromHex(hex: String): Array[Byte] = java.util.HexFormat.of.parseHex(hex)
  def hex(bytes: Array[Byte]): String = java.util.HexFormat.of.formatHex(bytes)
  def hex(bytes: Array[Byte], offset: Int, length: Int): String =
    java.util.HexFormat.of.formatHex(bytes, offset, offset + length)

  def family(of: JsonObject): Family = Family(
    of.get("id").getAsInt,
    text(of, "name"),
    FamilyKind.parse(text(of, "kind")),
    items(of.get("params")).map(_.getAsInt),
    text(of, "keySchema"),
    text(of, "valueSchema"),
    of.get("multiValue").getAsBoolean,
    of.get("internal").getAsBoolean,
    Option(of.get("ttl")).exists(_.getAsBoolean)
  )

  def families(of: JsonElement): Option[Seq[Family]] =
    if (of.isJsonNull) None else Some(objects(of).map(family))

  def tombstones(of: JsonElement): Seq[Tombstone] = items(of).map { one =>
    val parts = items(one)
    Tombstone(parts.head.getAsInt, bound(parts(1)), bound(parts(2)))
  }

  private def bound(of: JsonElement): Option[Array[Byte]] =
    if (of.isJsonNull) None else Some(bytes(of))

  /** Tombstones as something that can be compared. */
  def shown(tombstones: Seq[Tombstone]): Seq[(Int, Option[String], Option[String])] =
    tombstones.map(t => (t.family, t.from.map(hex), t.to.map(hex)))

  /** Rows of a block as (key, kind, value). */
  def shown(rows: RowBlock): Seq[(String, String, String)] = (0 until rows.count).map { i =>
    val kind = if (rows.isRemoved(i)) "remove" else if (rows.isAppended(i)) "append" else "put"
    val value =
      if (rows.isRemoved(i)) "" else hex(rows.bytes, rows.valueOffset(i), rows.valueLength(i))
    (hex(rows.bytes, rows.keyOffset(i), rows.keyLength(i)), kind, value)
  }

  def rows(of: JsonElement): Seq[(String, String, String)] = items(of).map { one =>
    val parts = items(one).map(_.getAsString)
    (parts.head, parts(1), parts(2))
  }

  def block(rows: Seq[(String, String, String)]): RowBlock = {
    val out = new RowBlock.Builder(64)
    rows.foreach { case (key, kind, value) =>
      val k = fromHex(key)
      val v = fromHex(value)
      kind match {
        case "remove" => out.addRemoved(k, 0, k.length)
        case "append" => out.addAppended(k, 0, k.length, v, 0, v.length)
        case _ => out.add(k, 0, k.length, v, 0, v.length)
      }
    }
    out.result()
  }

  def fields(of: JsonElement): Map[String, Array[Byte]] =
    of.getAsJsonObject.entrySet.asScala.map(e => e.getKey -> bytes(e.getValue)).toMap
}
