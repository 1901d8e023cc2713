package org.apache.spark.sql.redisstate

import scala.util.Try

import org.json4s.{DefaultFormats, JArray, JNothing, JNull, JValue}
import org.json4s.jackson.JsonMethods

import org.apache.spark.network.util.JavaUtils

import org.redisstate.core.backend.{ConnectionSettings, RedisUrl, Secret, TlsSettings}
import org.redisstate.core.errors.{ConfigException, InternalException}

/** The options under `spark.sql.streaming.stateStore.redis.`, checked against the table that Python reads too. */
final class RedisStateConf private (values: Map[String, String], minVersionsToRetain: Int) {

  val connection: ConnectionSettings = ConnectionSettings(
    RedisUrl.parse(values.getOrElse(
      "url",
      throw new ConfigException(s"the option ${RedisStateConf.Prefix}url is not set. " +
        "Set it to redis://host:port/database."))),
    values.get("username"),
    values.get("password").map(new Secret(_)),
    values.get("passwordFile"),
    TlsSettings(
      values.get("tls.caFile"),
      values.get("tls.certFile"),
      values.get("tls.keyFile"),
      flag("tls.verifyHostname", default = true)),
    milliseconds("socketTimeout", 5000).toInt,
    milliseconds("deadline", 60000),
    number("connectionsMax", 16)
  )

  /** Empty, or the tenant prefix and a colon. */
  val keyPrefix: String = values.get("keyPrefix").fold("")(_ + ":")
  val versionsToRetain: Int = number("versionsToRetain", minVersionsToRetain)
  val ephemeral: Boolean = flag("ephemeral", default = false)
  val adoptMovedCheckpoint: Boolean = values.get("onPathChange").contains("adopt")

  val localMemoryBytes: Long = values.get("localMemory").filter(_ != "auto") match {
    case Some(text) => checked("localMemory", text)(JavaUtils.byteStringAsBytes(text))
    case None => Runtime.getRuntime.maxMemory / 4
  }

  private def number(name: String, default: Int): Int =
    values.get(name).fold(default)(text => checked(name, text)(text.trim.toInt))

  private def milliseconds(name: String, default: Long): Long =
    values.get(name).fold(default)(text => checked(name, text)(JavaUtils.timeStringAsMs(text)))

  private def flag(name: String, default: Boolean): Boolean =
    values.get(name).fold(default)(text => checked(name, text)(text.trim.toLowerCase.toBoolean))

  private def checked[A](name: String, text: String)(parse: => A): A =
    Try(parse).getOrElse(throw new ConfigException(
      s"the option ${RedisStateConf.Prefix}$name is '$text'. See docs/configuration.md for what it takes."))
}

object RedisStateConf {
  val Prefix = "spark.sql.streaming.stateStore.redis."

  private final case class Known(name: String, choices: Seq[String])

  private lazy val known: Seq[Known] = {
    implicit val formats: DefaultFormats.type = DefaultFormats
    val in = getClass.getResourceAsStream("/org/redisstate/options.json")
    if (in == null)
      throw new InternalException("the jar holds no table of options: build it with `make build`")
    try {
      (JsonMethods.parse(in) \ "options") match {
        case JArray(options) =>
          options.map(o => Known((o \ "name").extract[String], choices(o \ "values")))
        case _ => throw new InternalException("the table of options in the jar cannot be read")
      }
    } finally in.close()
  }

  private def choices(value: JValue): Seq[String] = value match {
    case JArray(all) => all.map(_.values.toString)
    case JNothing | JNull => Nil
    case other => Seq(other.values.toString)
  }

  /**
   * @param confs any Spark configuration; names outside the prefix are passed over
   * @throws ConfigException for an unknown or wrong option, with what to write instead
   */
  def apply(confs: Map[String, String], minVersionsToRetain: Int): RedisStateConf = {
    val values = confs.collect {
      case (name, value) if name.startsWith(Prefix) => name.stripPrefix(Prefix) -> value
    }
    values.foreach { case (name, value) =>
      val option = known.find(_.name == name).getOrElse(throw unknown(name))
      if (option.choices.nonEmpty && !option.choices.contains(value)) {
        throw new ConfigException(
          s"the option $Prefix$name is '$value'. This release takes ${option.choices.mkString(" or ")}.")
      }
    }
    new RedisStateConf(values, minVersionsToRetain)
  }

  private def unknown(name: String): ConfigException = {
    val nearest = known.map(_.name).minBy(distance(_, name))
    new ConfigException(s"there is no option $Prefix$name. Did you mean $Prefix$nearest?")
  }

  /** Levenshtein's distance. */
  private def distance(a: String, b: String): Int =
    b.foldLeft((0 to a.length).toVector) { (above, c) =>
      above.zip(above.tail).zip(a).scanLeft(above.head + 1) { case (left, ((diagonal, up), d)) =>
        Seq(left + 1, up + 1, diagonal + (if (c == d) 0 else 1)).min
      }.toVector
    }.last
}
