package org.redisstate.core.backend

import scala.jdk.CollectionConverters._

import com.google.gson.{JsonElement, JsonObject}
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.RedisStateException
import org.redisstate.core.format.Vectors

/** The table of good and bad servers that Python is tested with too. */
class ServerChecksSuite extends AnyFunSuite {
  private val url = "redis://127.0.0.1:6379/0"

  Vectors.objects(Vectors.read("servers").getAsJsonObject.get("cases")).foreach { one =>
    val fields = one.getAsJsonObject("info")
    test(one.toString) {
      val lines = fields.entrySet.asScala.map(e => s"${e.getKey}:${e.getValue.getAsString}")
      val text = (Seq("# Server", "") ++ lines).mkString("\r\n")
      def judge(): Seq[String] = ServerChecks.judge(url, text, durability(one), () => settings(one))
      Option(one.get("refused")) match {
        case Some(words) =>
          val message = intercept[RedisStateException](judge()).getMessage
          Vectors.items(words).foreach(word => assert(message.contains(word.getAsString)))
          assert(message.contains(url))
        case None =>
          val expected = Option(one.get("warns")).fold(Seq.empty[JsonElement])(Vectors.items(_))
          val found = judge()
          assert(found.size == expected.size, found)
          found.zip(expected).foreach { case (warning, words) =>
            assert(Vectors.items(words).forall(word => warning.contains(word.getAsString)), warning)
            assert(warning.contains(url))
          }
      }
    }
  }

  private def durability(one: JsonObject): Durability =
    Durability.of(Option(one.get("durability")).fold("none")(_.getAsString))

  /** As a server answers to CONFIG GET. */
  private def settings(one: JsonObject): AnyRef = one.get("settings") match {
    case found: JsonObject =>
      found.entrySet.asScala.toSeq.flatMap { e =>
        Seq(Command.bytes(e.getKey), Command.bytes(e.getValue.getAsString))
      }
    case _ => ErrorReply("NOPERM User joe has no permissions to run the 'config|get' command")
  }
}
