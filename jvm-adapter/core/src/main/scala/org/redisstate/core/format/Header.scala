package org.redisstate.core.format

import scala.collection.mutable

import org.redisstate.core.errors.FormatException

/** How a family's keys are encoded, as far as the format depends on it. */
sealed abstract class FamilyKind(val name: String, val ordered: Boolean)

object FamilyKind {
  case object Plain extends FamilyKind("none", false)
  case object Prefix extends FamilyKind("prefix", false)
  case object Range extends FamilyKind("range", true)
  case object TimestampPrefix extends FamilyKind("ts-prefix", true)
  case object TimestampPostfix extends FamilyKind("ts-postfix", false)

  private val all = Seq(Plain, Prefix, Range, TimestampPrefix, TimestampPostfix)

  def parse(name: String): FamilyKind = all.find(_.name == name).getOrElse(
    throw new FormatException(s"the encoder kind '$name' is unknown to this release"))
}

/** A column family; schemas are Spark's JSON text. Id 0 is the family `default`. */
final case class Family(
    id: Int,
    name: String,
    kind: FamilyKind,
    params: Seq[Int],
    keySchema: String,
    valueSchema: String,
    multiValue: Boolean,
    internal: Boolean)

/** Removes the stored keys of a family in [from, to); None leaves that side open. */
final case class Tombstone(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]])

/** Field `h` of a segment (docs/format.md, section 4.5). */
final case class Header(
    families: Option[Seq[Family]],
    ordered: Seq[(Int, Seq[Array[Byte]])],
    parts: Map[Int, Int],
    tombstones: Seq[Tombstone]) {
  def isEmpty: Boolean = families.isEmpty && ordered.isEmpty && parts.isEmpty && tombstones.isEmpty

  def encode: Array[Byte] = {
    val out = new MsgpackWriter(256)
    out.putMap(
      Seq(families.nonEmpty, ordered.nonEmpty, parts.nonEmpty, tombstones.nonEmpty).count(identity))
    families.foreach { all =>
      out.putString("f")
      out.putArray(all.size)
      all.foreach(writeFamily(out, _))
    }
    if (ordered.nonEmpty) {
      out.putString("o")
      out.putArray(ordered.size)
      ordered.foreach { case (family, firstKeys) =>
        out.putArray(2)
        out.putUint(family)
        out.putArray(firstKeys.size)
        firstKeys.foreach(key => out.putBin(key, 0, key.length))
      }
    }
    if (parts.nonEmpty) {
      out.putString("p")
      out.putArray(parts.size * 2)
      parts.toSeq.sortBy(_._1).foreach { case (bucket, count) =>
        out.putUint(bucket)
        out.putUint(count)
      }
    }
    if (tombstones.nonEmpty) {
      out.putString("t")
      out.putArray(tombstones.size)
      tombstones.foreach { tombstone =>
        out.putArray(3)
        out.putUint(tombstone.family)
        writeBound(out, tombstone.from)
        writeBound(out, tombstone.to)
      }
    }
    out.toBytes
  }

  private def writeFamily(out: MsgpackWriter, family: Family): Unit = {
    out.putArray(8)
    out.putUint(family.id)
    out.putString(family.name)
    out.putString(family.kind.name)
    out.putArray(family.params.size)
    family.params.foreach(out.putUint)
    out.putString(family.keySchema)
    out.putString(family.valueSchema)
    out.putBool(family.multiValue)
    out.putBool(family.internal)
  }

  private def writeBound(out: MsgpackWriter, bound: Option[Array[Byte]]): Unit = bound match {
    case Some(key) => out.putBin(key, 0, key.length)
    case None => out.putNil()
  }
}

object Header {
  val Field = "h"
  val Empty: Header = Header(None, Nil, Map.empty, Nil)

  def decode(payload: Array[Byte]): Header = {
    val in = new MsgpackReader(payload)
    var header = Empty
    for (_ <- 0 until in.mapSize()) in.string() match {
      case "f" => header = header.copy(families = Some(read(in)(family(in))))
      case "o" => header = header.copy(ordered = read(in)(orderedIndex(in)))
      case "p" => header = header.copy(parts = readParts(in))
      case "t" => header = header.copy(tombstones = read(in)(tombstone(in)))
      case other =>
        throw new FormatException(s"the header member '${other.take(20)}' is unknown to this release")
    }
    header
  }

  private def read[A](in: MsgpackReader)(one: => A): Seq[A] = {
    val size = in.arraySize()
    val all = mutable.ArrayBuffer.empty[A]
    for (_ <- 0 until size) all += one
    all.toSeq
  }

  private def expect(in: MsgpackReader, size: Int): Unit =
    if (in.arraySize() != size) {
      throw new FormatException(s"the header holds an array of another size where $size belong")
    }

  private def family(in: MsgpackReader): Family = {
    expect(in, 8)
    Family(
      in.uint(),
      in.string(),
      FamilyKind.parse(in.string()),
      read(in)(in.uint()),
      in.string(),
      in.string(),
      in.bool(),
      in.bool())
  }

  private def orderedIndex(in: MsgpackReader): (Int, Seq[Array[Byte]]) = {
    expect(in, 2)
    val id = in.uint()
    id -> read(in)(in.binOrNil())
  }

  private def readParts(in: MsgpackReader): Map[Int, Int] =
    read(in)(in.uint()).grouped(2).collect { case Seq(bucket, count) => bucket -> count }.toMap

  private def tombstone(in: MsgpackReader): Tombstone = {
    expect(in, 3)
    Tombstone(in.uint(), Option(in.binOrNil()), Option(in.binOrNil()))
  }
}
