package org.redisstate.core.format

import scala.collection.mutable

import org.redisstate.core.errors.FormatException

/** Encoding of a family's keys, as far as the format depends on it. */
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

/**
 * A column family; schemas are Spark's JSON text. Id 0 is the family `default`.
 *
 * @param ttl whether each value is followed by its expiry (docs/format.md, section 15)
 */
final case class Family(
    id: Int,
    name: String,
    kind: FamilyKind,
    params: Seq[Int],
    keySchema: String,
    valueSchema: String,
    multiValue: Boolean,
    internal: Boolean,
    ttl: Boolean = false) {

  /** Returns whether rows of the family may have a time to live. */
  def canExpire: Boolean = kind != FamilyKind.TimestampPrefix && !multiValue && !internal
}

/** Removes the stored keys of a family in [from, to); None leaves that side open. */
final case class Tombstone(family: Int, from: Option[Array[Byte]], to: Option[Array[Byte]]) {

  /** Returns whether the range covers a stored key. */
  def covers(bytes: Array[Byte], keyOffset: Int, keyLength: Int): Boolean =
    keyFamily(bytes, keyOffset) == family &&
      from.forall(compare(bytes, keyOffset, keyLength, _) >= 0) &&
      to.forall(compare(bytes, keyOffset, keyLength, _) < 0)

  private def keyFamily(bytes: Array[Byte], at: Int): Int =
    ((bytes(at) & 0xff) << 8) | (bytes(at + 1) & 0xff)

  private def compare(bytes: Array[Byte], offset: Int, length: Int, bound: Array[Byte]): Int =
    java.util.Arrays.compareUnsigned(bytes, offset + 2, offset + length, bound, 0, bound.length)
}

/**
 * Field `h` of a segment (docs/format.md, section 4.5).
 *
 * @param highestId of all families that the lineage ever had, where one above those of the table is gone
 */
final case class Header(
    families: Option[Seq[Family]],
    ordered: Seq[(Int, Seq[Array[Byte]])],
    parts: Map[Int, Int],
    tombstones: Seq[Tombstone],
    highestId: Option[Int] = None) {
  def isEmpty: Boolean = families.isEmpty && ordered.isEmpty && parts.isEmpty && tombstones.isEmpty

  def encode: Array[Byte] = {
    val out = new MsgpackWriter(256)
    out.putMap(
      Seq(
        families.nonEmpty,
        highestId.nonEmpty,
        ordered.nonEmpty,
        parts.nonEmpty,
        tombstones.nonEmpty).count(identity))
    families.foreach { all =>
      out.putString("f")
      out.putArray(all.size)
      all.foreach(writeFamily(out, _))
    }
    highestId.foreach { id =>
      out.putString("i")
      out.putUint(id)
    }
    if (ordered.nonEmpty) {
      out.putString("o")
      out.putArray(ordered.size)
      ordered.sortBy(_._1).foreach { case (family, firstKeys) =>
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
    out.putArray(if (family.ttl) Header.FamilyParts + 1 else Header.FamilyParts)
    out.putUint(family.id)
    out.putString(family.name)
    out.putString(family.kind.name)
    out.putArray(family.params.size)
    family.params.foreach(out.putUint)
    out.putString(family.keySchema)
    out.putString(family.valueSchema)
    out.putBool(family.multiValue)
    out.putBool(family.internal)
    if (family.ttl) out.putBool(true)
  }

  private def writeBound(out: MsgpackWriter, bound: Option[Array[Byte]]): Unit = bound match {
    case Some(key) => out.putBin(key, 0, key.length)
    case None => out.putNil()
  }
}

object Header {
  val Field = "h"
  val Empty: Header = Header(None, Nil, Map.empty, Nil)

  private val Members = "fiopt"
  private val FamilyParts = 8
  private[core] val FamilyIdMax = 0xffff
  private[core] val PartsMax = 1 << 20

  def decode(payload: Array[Byte]): Header = {
    val in = new MsgpackReader(payload)
    var header = Empty
    var last = -1
    for (_ <- 0 until in.mapSize()) {
      val name = in.string()
      val place = if (name.length == 1) Members.indexOf(name) else -1
      if (place <= last)
        bad(s"the member '${name.take(20)}', unknown to this release or out of order")
      last = place
      header = name match {
        case "f" => header.copy(families = Some(distinct(read(in)(family(in)))))
        case "i" => header.copy(highestId = Some(familyId(in)))
        case "o" => header.copy(ordered = read(in)(orderedIndex(in)))
        case "p" => header.copy(parts = readParts(in))
        case _ => header.copy(tombstones = read(in)(tombstone(in)))
      }
    }
    if (!in.atEnd) bad("bytes after its end")
    header.highestId.foreach { id =>
      if (!header.families.exists(_.forall(_.id < id)))
        bad("a highest family id that is not above those of a family table")
    }
    if (header.ordered.map(_._1).distinct.size != header.ordered.size) bad("an index twice")
    header
  }

  private def bad(found: String): Nothing = throw new FormatException(s"the header holds $found")

  private def distinct(families: Seq[Family]): Seq[Family] = {
    val unique = families.map(_.id).distinct.size == families.size &&
      families.map(_.name).distinct.size == families.size
    if (unique) families else bad("a family twice")
  }

  private def familyId(in: MsgpackReader): Int = {
    val id = in.uint()
    if (id <= FamilyIdMax) id else bad("a family id above 65535")
  }

  private def read[A](in: MsgpackReader)(one: => A): Seq[A] = {
    val size = in.arraySize()
    val all = mutable.ArrayBuffer.empty[A]
    for (_ <- 0 until size) all += one
    all.toSeq
  }

  private def expect(in: MsgpackReader, size: Int): Unit =
    if (in.arraySize() != size) {
      throw new FormatException(s"the header holds an array whose size is not $size")
    }

  private def family(in: MsgpackReader): Family = {
    val parts = in.arraySize()
    if (parts != FamilyParts && parts != FamilyParts + 1)
      bad(s"a family of $parts parts, not $FamilyParts or ${FamilyParts + 1}")
    val plain = Family(
      familyId(in),
      in.string(),
      FamilyKind.parse(in.string()),
      read(in)(in.uint()),
      in.string(),
      in.string(),
      in.bool(),
      in.bool())
    if (parts == FamilyParts) plain
    else if (in.bool() && plain.canExpire) plain.copy(ttl = true)
    else bad("a time to live of a family that cannot have one")
  }

  private def orderedIndex(in: MsgpackReader): (Int, Seq[Array[Byte]]) = {
    expect(in, 2)
    val id = familyId(in)
    val keys = read(in)(in.bin())
    val ascending = keys.lazyZip(keys.drop(1)).forall { (a, b) =>
      java.util.Arrays.compareUnsigned(a, b) < 0
    }
    if (ascending) id -> keys else bad("first keys of blocks that are not in ascending order")
  }

  private def readParts(in: MsgpackReader): Map[Int, Int] = {
    val numbers = read(in)(in.uint())
    if (numbers.size % 2 != 0) bad("a bucket without a number of parts")
    var last = -1
    numbers.grouped(2).foreach { pair =>
      if (pair(0) <= last || pair(1) < 2 || pair(1) > PartsMax) bad("parts that are out of order")
      last = pair(0)
    }
    numbers.grouped(2).map(pair => pair(0) -> pair(1)).toMap
  }

  private def tombstone(in: MsgpackReader): Tombstone = {
    expect(in, 3)
    Tombstone(familyId(in), Option(in.binOrNil()), Option(in.binOrNil()))
  }
}
