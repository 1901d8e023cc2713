package org.redisstate.core.backend

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.ConfigException
import org.redisstate.core.format.Vectors

/** The URL grammar, on the vectors that the Python package is tested on too. */
final class RedisUrlSuite extends AnyFunSuite {
  private val vectors = Vectors.read("urls").getAsJsonObject

  test("a URL is read and written in full") {
    Vectors.objects(vectors.get("good")).foreach { vector =>
      val found = RedisUrl.parse(Vectors.text(vector, "text"))
      assert(found.toString == Vectors.text(vector, "url"))
      assert(RedisUrl.parse(found.toString) == found)
    }
  }

  test("a wrong URL is explained and not repeated") {
    Vectors.objects(vectors.get("bad")).foreach { vector =>
      val text = Vectors.text(vector, "text")
      val error = intercept[ConfigException](RedisUrl.parse(text))
      assert(error.getMessage.contains(Vectors.text(vector, "found")), text)
      assert(!error.getMessage.contains("geheim"), text)
      assert(error.getCause == null, text)
    }
  }

  test("a unix socket is for Python only") {
    Vectors.objects(vectors.get("pythonOnly")).foreach { vector =>
      val error = intercept[ConfigException](RedisUrl.parse(Vectors.text(vector, "text")))
      assert(error.getMessage.contains("unix:// is not supported by the JVM adapter"))
    }
  }

  test("no more servers than a URL may name") {
    val error =
      intercept[ConfigException](
        RedisUrl.parse("redis+cluster://" + Seq.fill(65)("h").mkString(",")))
    assert(error.getMessage.contains("more than 64 servers"))
  }
}
