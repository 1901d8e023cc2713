package org.redisstate.core.backend

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.Vectors

/** The table of good and bad servers that Python is tested with too. */
class ServerChecksSuite extends AnyFunSuite {
  private val url = "redis://127.0.0.1:6379/0"

  Vectors.objects(Vectors.read("servers").getAsJsonObject.get("cases")).foreach { one =>
    val fields = one.getAsJsonObject("info")
    test(fields.toString) {
      val lines = fields.entrySet.asScala.map(e => s"${e.getKey}:${e.getValue.getAsString}")
      val text = (Seq("# Server", "") ++ lines).mkString("\r\n")
      Option(one.get("refused")) match {
        case Some(words) =>
          val message = intercept[ConfigException](ServerChecks.judge(url, text)).getMessage
          Vectors.items(words).foreach(word => assert(message.contains(word.getAsString)))
          assert(message.contains(url))
        case None => ServerChecks.judge(url, text)
      }
    }
  }
}
