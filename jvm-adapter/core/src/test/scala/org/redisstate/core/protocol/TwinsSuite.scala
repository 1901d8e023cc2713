package org.redisstate.core.protocol

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import com.google.gson.JsonObject
import com.tngtech.archunit.core.importer.ClassFileImporter
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.Vectors
import org.redisstate.core.ids.PartitionId

/** Names and meanings that both languages share, on the table that the Python package is tested on too. */
final class TwinsSuite extends AnyFunSuite {
  private val table = Vectors.read("twins").getAsJsonObject

  private def rows(name: String): Seq[JsonObject] = Vectors.objects(table.get(name))

  private def texts(row: JsonObject, name: String): Seq[String] =
    Vectors.items(row.get(name)).map(_.getAsString)

  /** An error of each class. */
  private lazy val errors: Seq[RedisStateException] =
    new ClassFileImporter()
      .importPackages("org.redisstate.core.errors")
      .asScala
      .map(_.reflect())
      .filter(c => classOf[RedisStateException].isAssignableFrom(c) && isConcrete(c))
      .map { c =>
        val make = c.getConstructors.head
        val some: Seq[AnyRef] = Seq("Nothing.", null, java.lang.Boolean.FALSE)
        make.newInstance(some.take(make.getParameterCount): _*).asInstanceOf[RedisStateException]
      }
      .toSeq

  private def isConcrete(c: Class[_]): Boolean =
    !java.lang.reflect.Modifier.isAbstract(c.getModifiers)

  test("each kind has its class") {
    val ours = errors.map(e => e.kind -> (e.getClass.getSimpleName -> e.retryable)).toMap
    val known = rows("errors").filterNot(_.get("jvm").isJsonNull).map { row =>
      Vectors.text(row, "kind") ->
        (Vectors.text(row, "jvm") -> row.get("retryable").getAsBoolean)
    }.toMap
    assert(ours == known)
    assert(ours.size == errors.size)
  }

  test("what a script refuses has its kind") {
    val id = PartitionId("", "0" * 32, 0, 3, "default")
    rows("refusals").foreach { row =>
      val reply = texts(row, "reply")
      assert(Refusal.of("read", reply, 3, id).kind == Vectors.text(row, "kind"), reply)
    }
  }

  test("a start asks for the rights of a job") {
    val asked = Rights.commands("{hash}", "{text}")
      .map(c => c.name +: c.args.toSeq.map(new String(_, UTF_8)))
    assert(asked == Vectors.items(table.get("startCheck")).map(Vectors.items(_).map(_.getAsString)))
  }
}
