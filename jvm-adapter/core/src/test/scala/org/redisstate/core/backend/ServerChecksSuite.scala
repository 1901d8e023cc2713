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

  private val table = Vectors.read("servers").getAsJsonObject

  test("the commands looked for are those of the table") {
    assert(ServerNeeds.Commands == Vectors.items(table.get("needed")).map(_.getAsString))
  }

  Vectors.objects(table.get("limits")).foreach { one =>
    test(s"limits: $one") {
      val settings = one.getAsJsonObject("settings").entrySet.asScala.toSeq
      val words = settings.flatMap(e => Seq(e.getKey, e.getValue.getAsString)).map(Command.bytes)
      val limits = ServerNeeds.settingsIn(Seq(words, ErrorReply("NOPERM no right")))
      assert(limits == settings.map(e => e.getKey -> e.getValue.getAsString).toMap)
      val warnings = ServerNeeds.warnings(url, limits)
      val expected = Vectors.items(one.get("warns"))
      assert(warnings.size == expected.size, warnings)
      warnings.zip(expected).foreach { case (warning, all) =>
        assert(Vectors.items(all).forall(word => warning.contains(word.getAsString)), warning)
        assert(warning.contains(url))
      }
      val longest = one.get("longest").getAsLong
      val exceeded = Option(one.get("exceeded")).filterNot(_.isJsonNull).map(_.getAsString)
      assert(ServerNeeds.exceeded(limits, longest) == exceeded)
      val hint = ServerNeeds.hintOfLimits(limits, one.get("sent").getAsLong, longest)
      assert(Vectors.items(one.get("hint")).forall(word => hint.contains(word.getAsString)), hint)
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
