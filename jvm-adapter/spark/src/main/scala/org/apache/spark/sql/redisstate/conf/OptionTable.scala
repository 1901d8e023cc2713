package org.apache.spark.sql.redisstate.conf

import scala.util.matching.Regex

import org.json4s.{DefaultFormats, JArray, JNothing, JNull, JValue}
import org.json4s.jackson.JsonMethods

import org.redisstate.core.backend.{RedisUrl, Secret}
import org.redisstate.core.errors.{ConfigException, InternalException}

/** A checked value; nothing here prints a password. */
private[redisstate] sealed trait OptionValue

private[redisstate] object OptionValue {
  final case class Text(text: String) extends OptionValue
  final case class Hidden(secret: Secret) extends OptionValue

  /** Bytes for sizes, milliseconds for durations. */
  final case class Number(number: Long) extends OptionValue
  final case class Flag(on: Boolean) extends OptionValue
  final case class Url(url: RedisUrl) extends OptionValue
}

/** Table of options (`options.json`), with the same checks as `redis_state/config.py`. */
private[redisstate] object OptionTable {
  import OptionValue._

  /** One row: see `redis_state.config.Option`. */
  private final case class OptionRow(
      name: String,
      kind: String,
      default: Option[String],
      required: Boolean,
      secret: Boolean,
      auto: Boolean,
      min: Option[Long],
      max: Option[Long],
      values: Seq[String],
      pattern: Option[Regex],
      needsAny: Seq[String],
      excludes: Option[String],
      needsTls: Boolean,
      perOperator: Boolean)

  private final case class Table(
      sparkMinors: Seq[String],
      rows: Seq[OptionRow],
      units: Map[String, Seq[(String, Long)]])

  private val WithReplicas = "(?:aof\\+)?replicas:([0-9]{1,4})".r
  private val OfOperator = "([A-Za-z_]+)\\.(0|[1-9][0-9]{0,8})".r
  private val Whole = "[+-]?[0-9]{1,18}".r
  private val WithUnit = "([0-9]{1,15})([a-z]{1,3})".r
  private val KilobyteSpelling = "(?<=[kmgtKMGT])[bB]$".r

  private lazy val table: Table = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val in = getClass.getResourceAsStream("/org/redisstate/options.json")
    if (in == null)
      throw new InternalException("the jar holds no table of options: build it with `make build`")
    val json: JValue =
      try JsonMethods.parse(in)
      finally in.close()
    val units = Seq("bytes", "duration").map { kind =>
      kind -> (json \ "units" \ kind).extract[Map[String, Long]].toSeq.sortBy(_._2)
    }
    val minors = (json \ "sparkMinors").extract[List[String]]
    Table(minors, (json \ "options").children.map(row), units.toMap)
  }

  private def row(json: JValue): OptionRow = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    def flag(name: String) = (json \ name).extractOrElse(false)
    def text(name: String) = json \ name match {
      case JNothing | JNull => None
      case value => Some(value.values.toString)
    }
    def texts(name: String) = json \ name match {
      case JArray(all) => all.map(_.values.toString)
      case _ => Nil
    }
    OptionRow(
      (json \ "name").extract[String],
      (json \ "type").extract[String],
      text("default"),
      flag("required"),
      flag("secret"),
      flag("auto"),
      (json \ "min").extractOpt[Long],
      (json \ "max").extractOpt[Long],
      texts("values"),
      text("pattern").map(_.r),
      texts("needsAny"),
      text("excludes"),
      flag("needsTls"),
      flag("perOperator")
    )
  }

  /** Versions of Spark that this release has a jar for. */
  def sparkMinors: Seq[String] = table.sparkMinors

  /** Greatest value of an option that has one. */
  def max(name: String): Option[Long] = table.rows.find(_.name == name).flatMap(_.max)

  /**
   * @param texts texts under the names of the table
   * @return what was given and what has a default
   * @throws ConfigException for an unknown, wrong or missing option, or two that contradict each other
   */
  def parse(texts: Map[String, String]): Map[String, OptionValue] = {
    val ofOperators = texts.collect { case (name @ OfOperator(of, _), text) =>
      table.rows.find(row => row.perOperator && row.name == of).map(row =>
        row.copy(name = name, default = None) -> text)
    }.flatten.toSeq
    val known = (table.rows ++ ofOperators.map(_._1)).map(_.name).toSet
    texts.keys.find(!known(_)).foreach(name => throw unknown(name))
    val parsed = table.rows.flatMap { row =>
      texts.get(row.name) match {
        // A secret is taken as it is; elsewhere blanks around a value are never meant.
        case Some(text) => Some(row.name -> value(row, if (row.secret) text else text.strip))
        case None if row.required =>
          throw bad(row, "it is missing", "Give it, such as redis://localhost:6379/0.")
        case None => row.default.map(text => row.name -> value(row, text))
      }
    }.toMap ++ ofOperators.map { case (row, text) => row.name -> value(row, text.strip) }
    val tls = parsed.values.exists { case Url(url) => url.tls; case _ => false }
    table.rows.filter(row => texts.contains(row.name)).foreach(checkTogether(_, texts.keySet, tls))
    parsed
  }

  private def checkTogether(row: OptionRow, names: Set[String], tls: Boolean): Unit = {
    row.excludes.filter(names).foreach { other =>
      throw bad(row, s"'$other' is given too", "Give one of the two.")
    }
    if (row.needsAny.nonEmpty && !row.needsAny.exists(names)) {
      val needed = row.needsAny.map(n => s"'$n'").mkString(" or ")
      throw bad(row, s"$needed is missing", s"Give $needed too, or leave it out.")
    }
    if (row.needsTls && !tls) {
      throw bad(
        row,
        "the URL is redis://, which has no TLS",
        "Use a rediss:// URL, or leave the tls options out.")
    }
  }

  private def value(row: OptionRow, text: String): OptionValue = row.kind match {
    case "bool" => Flag(flag(row, text))
    case "bytes" if row.auto && text == "auto" => Text(text)
    case "bytes" =>
      Number(withUnit(row, KilobyteSpelling.replaceFirstIn(text, ""), "size", "bytes", "2g"))
    case "duration" => Number(withUnit(row, text, "duration", "ms", "60s"))
    case "enum" if row.values.contains(text) => Text(text)
    case "enum" => throw notAccepted(row, text)
    case "durability" => Text(durability(row, text))
    case "int" if Whole.matches(text) => Number(inRange(row, text, BigInt(text), ""))
    case "int" =>
      throw bad(row, s"'$text' is not a whole number", "Give a number such as 100.")
    case "prefix" if row.pattern.forall(_.matches(text)) => Text(text)
    case "prefix" =>
      throw bad(
        row,
        s"'$text' is not a key prefix",
        "Give 1 to 64 letters, digits, '_', '.' or '-'.")
    case "url" => Url(RedisUrl.parse(text))
    case _ =>
      val line = oneLine(row, text)
      if (row.secret) Hidden(new Secret(line)) else Text(line)
  }

  private def durability(row: OptionRow, text: String): String = text match {
    case "none" | "aof" => text
    case WithReplicas(number) =>
      inRange(row, number, BigInt(number), " replicas")
      text
    case _ => throw notAccepted(row, text)
  }

  private def notAccepted(row: OptionRow, text: String): ConfigException =
    bad(
      row,
      s"'$text' is not accepted",
      s"This release accepts: ${row.values.mkString(", ")}.")

  private def flag(row: OptionRow, text: String): Boolean = text.toLowerCase match {
    case "true" => true
    case "false" => false
    case _ => throw bad(row, s"'$text' is not a truth value", "Give true or false.")
  }

  private def withUnit(
      row: OptionRow,
      text: String,
      what: String,
      unit: String,
      example: String): Long = {
    val units = table.units(row.kind)
    val found = text.toLowerCase match {
      case WithUnit(digits, name) =>
        units.collectFirst { case (`name`, factor) => BigInt(digits) * factor }
      case _ => None
    }
    val number = found.getOrElse {
      val names = units.map(_._1).mkString(", ")
      throw bad(
        row,
        s"'$text' is not a $what",
        s"Give a whole number and a unit ($names), such as $example.")
    }
    inRange(row, text, number, s" $unit")
  }

  private def inRange(row: OptionRow, text: String, number: BigInt, unit: String): Long = {
    if (row.min.exists(number < BigInt(_)) || row.max.exists(number > BigInt(_))) {
      val allowed = s"${row.min.getOrElse("")} to ${row.max.getOrElse("")}$unit"
      throw bad(row, s"$text is out of range", s"Allowed: $allowed.")
    }
    number.toLong
  }

  private def oneLine(row: OptionRow, text: String): String = {
    if (text.isEmpty || text.exists(c => c < 32 || c == 127))
      throw bad(row, "it is empty or holds control characters", "Give one line of text.")
    // Spark drops them from a properties file, so the password would differ by way of starting.
    if (text != text.strip) {
      throw new ConfigException(
        s"option '${row.name}'; its value begins or ends with a blank. " +
          "Change it, or give a password in 'passwordFile'.")
    }
    text
  }

  private def bad(row: OptionRow, found: String, advice: String): ConfigException = {
    val shown = if (row.secret) "its value is not allowed" else found
    new ConfigException(s"option '${row.name}'; $shown. $advice")
  }

  private def unknown(name: String): ConfigException = {
    val nearest = table.rows.map(_.name).minBy(n => distance(n.toLowerCase, name.toLowerCase))
    new ConfigException(
      s"reading the options; there is no option '$name'. Did you mean '$nearest'? " +
        s"Options: ${table.rows.map(_.name).mkString(", ")}.")
  }

  /** Levenshtein's distance. */
  private def distance(a: String, b: String): Int =
    b.foldLeft((0 to a.length).toVector) { (above, c) =>
      above.zip(above.tail).zip(a).scanLeft(above.head + 1) { case (left, ((diagonal, up), d)) =>
        Seq(left + 1, up + 1, diagonal + (if (c == d) 0 else 1)).min
      }.toVector
    }.last
}
