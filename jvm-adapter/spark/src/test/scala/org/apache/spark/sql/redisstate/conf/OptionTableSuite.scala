package org.apache.spark.sql.redisstate.conf

import org.json4s._
import org.json4s.jackson.JsonMethods
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.SharedVectors

import org.redisstate.core.errors.ConfigException

/** The table of good and bad options that Python is tested with too. */
class OptionTableSuite extends AnyFunSuite {
  private implicit val formats: DefaultFormats.type = DefaultFormats
  private val url = "redis://localhost:6379/0"

  private val cases: List[JValue] = {
    SharedVectors.read("options") \ "cases" match {
      case JArray(all) => all
      case _ => fail("there are no cases")
    }
  }

  private def optionsOf(one: JValue): Map[String, String] =
    (one \ "options").extract[Map[String, JValue]].foldLeft(Map("url" -> url)) {
      case (options, (name, JNull)) => options - name
      case (options, (name, value)) => options + (name -> value.extract[String])
    }

  private val OfOperator = "stateTtl\\.([0-9]+)".r

  cases.foreach { one =>
    test(JsonMethods.compact(JsonMethods.render(one \ "options"))) {
      val confs = optionsOf(one).map { case (name, text) => RedisStateConf.Prefix + name -> text }
      one \ "refused" match {
        case JArray(all) =>
          val words = all.map(_.extract[String])
          val message = intercept[ConfigException](RedisStateConf(confs, 100)).getMessage
          assert(message.startsWith("[REDIS_CONFIG] "))
          assert(words.filterNot(word => message.contains(word)) == Nil, message)
          assert(!message.contains("geheim"))
        case _ =>
          val parsed = OptionTable.parse(optionsOf(one))
          val conf = RedisStateConf(confs, 100)
          (one \ "gives").extract[Map[String, JValue]].foreach { case (name, expected) =>
            val value = parsed.get(name).map {
              case OptionValue.Text(text) => JString(text)
              case OptionValue.Number(number) => JInt(number)
              case OptionValue.Flag(on) => JBool(on)
              case OptionValue.Url(url) => JString(url.toString)
              case OptionValue.Hidden(_) => JNothing
            }
            val found = name match {
              case OfOperator(operator) =>
                conf.stateTtlMs(operator.toLong).fold[JValue](JNull)(JInt(_))
              case _ => value.getOrElse(JNull)
            }
            assert(found == expected, name)
          }
          assert(conf.connection.url.addresses.nonEmpty)
      }
    }
  }

  test("a local disk has an absolute path, and no address") {
    def conf(folder: String) = {
      val options = Map("url" -> url, "localDisk" -> "1g", "localDiskFolder" -> folder)
      RedisStateConf(options.map { case (k, v) => RedisStateConf.Prefix + k -> v }, 100)
    }
    assert(conf("/mnt/disk1").localDiskFolder.contains("/mnt/disk1"))
    assert(conf("/mnt/disk1").localDiskBytes.contains(1L << 30))
    Seq("s3a://bucket/disk", "file:/mnt/disk1", "disk1", "~/disk1").foreach { folder =>
      val refused = intercept[ConfigException](conf(folder))
      assert(refused.getMessage.contains("localDiskFolder"))
    }
  }

  test("nothing prints a password") {
    val parsed = OptionTable.parse(Map("url" -> url, "password" -> "geheim"))
    assert(!parsed.toString.contains("geheim"))
    val conf = RedisStateConf(
      Map(RedisStateConf.Prefix + "url" -> url, RedisStateConf.Prefix + "password" -> "geheim"),
      100)
    assert(!conf.connection.toString.contains("geheim"))
    assert(conf.connection.currentPassword().contains("geheim"))
  }

  test("more batches to retain than versions can be kept are refused with what to do") {
    def kept(batches: Int, more: (String, String)*): Int = {
      val confs = (("url" -> url) +: more).map { case (name, value) =>
        RedisStateConf.Prefix + name -> value
      }
      RedisStateConf(confs.toMap, batches).versionsToRetain
    }
    assert(kept(10000) == 10000)
    assert(kept(1000000, "versionsToRetain" -> "50") == 50)
    val error = intercept[ConfigException](kept(10001))
    assert(error.getMessage.contains("minBatchesToRetain is 10001"))
    assert(error.getMessage.contains("versionsToRetain"))
  }
}
