package org.apache.spark.sql.redisstate.copies

import scala.util.Try

import org.json4s.{DefaultFormats, JArray, JInt, JString, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.redisstate.core.copy.{CopiedName, CopiedSegment, CopyFile, CopyPart}
import org.redisstate.core.format.Place

/**
 * Version and timeline of a copy.
 *
 * @param folder address of the files of copies
 * @param ownFolder address of the query's own block files, if they are in another folder
 */
private[redisstate] final case class CopyHead(
    gen: String,
    version: Long,
    runId: String,
    createdMs: Long,
    offsets: String,
    query: Map[String, String],
    folder: String,
    ownFolder: Option[String])

/**
 * Manifest of a complete copy (docs/format.md, section 11), without the rest of its parts.
 *
 * @param segments places of all segments; empty in a copy of format 1
 * @param unneeded files that the copy does not name, with the time when a copy last did
 */
private[copies] final case class CopyManifest(
    gen: String,
    version: Long,
    offsets: String,
    segments: Map[CopiedName, Place.InFile],
    unneeded: Map[CopyFile, Long]) {

  /** Files that the copy names. */
  lazy val files: Set[CopyFile] = segments.valuesIterator.map(p => CopyFile(gen, p.file)).toSet
}

private[copies] object CopyManifest {
  private val Format = 2
  private val Ending = s".${Place.CopyEnding}"

  /** Returns the JSON of a manifest. */
  def text(
      head: CopyHead,
      parts: Seq[(CopyPart, Seq[CopiedSegment])],
      unneeded: Map[CopyFile, Long]): String = {
    val stored = parts.map { case (part, segments) =>
      ("operator" -> part.id.operator) ~ ("partition" -> part.id.partition) ~
        ("store" -> part.id.storeName) ~ ("uid" -> part.pin.uid) ~
        ("checkpoint_format" -> part.format.toInt) ~ ("retained" -> part.retained.toInt) ~
        ("segments" -> segments.map(one =>
          Seq(one.field, one.entry, one.place.fold("")(_.text))))
    }
    // Without their ending, so that no search for the name of a file finds it here.
    val left = unneeded.toSeq.sortBy { case (file, _) => (file.gen, file.name) }.map {
      case (file, since) =>
        JArray(List(JString(file.gen), JString(file.name.stripSuffix(Ending)), JInt(since)))
    }
    compact(render(
      ("format" -> Format) ~ ("gen" -> head.gen) ~ ("version" -> head.version) ~
        ("run" -> head.runId) ~ ("created" -> head.createdMs) ~ ("offsets" -> head.offsets) ~
        ("query" -> head.query) ~ ("folder" -> head.folder) ~
        ("outside" -> head.ownFolder.nonEmpty) ~ ("own_folder" -> head.ownFolder) ~
        ("parts" -> stored) ~ ("unneeded" -> left)))
  }

  /** Reads the JSON of a manifest of format 1 or 2; None if it is none. */
  def parsed(text: String): Option[CopyManifest] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    for {
      json <- Try(parse(text): JValue).toOption
      version <- (json \ "version").extractOpt[Long]
      offsets <- (json \ "offsets").extractOpt[String]
      gen = (json \ "gen").extractOpt[String].getOrElse("")
    } yield CopyManifest(gen, version, offsets, segmentsIn(json), unneededIn(json))
  }

  private def segmentsIn(json: JValue): Map[CopiedName, Place.InFile] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val found = for {
      part <- (json \ "parts").extractOpt[List[JValue]].getOrElse(Nil)
      operator <- (part \ "operator").extractOpt[Long].toList
      partition <- (part \ "partition").extractOpt[Int].toList
      store <- (part \ "store").extractOpt[String].toList
      segment <- (part \ "segments").extractOpt[List[List[String]]].getOrElse(Nil)
      named <- segment match {
        case List(field, entry, place) =>
          Try(Place.parse(field, place)).toOption.collect { case file: Place.InFile =>
            CopiedName(operator, partition, store, field, entry) -> file
          }.toList
        case _ => Nil
      }
    } yield named
    found.toMap
  }

  private def unneededIn(json: JValue): Map[CopyFile, Long] = (json \ "unneeded") match {
    case JArray(all) => all.collect { case JArray(List(JString(gen), JString(name), JInt(since))) =>
        CopyFile(gen, name + Ending) -> since.toLong
      }.toMap
    case _ => Map.empty
  }
}
