package org.redisstate.core.backend

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.Vectors

/** Meanings of error replies, on the vectors that also test the Python package. */
final class ReplyClassSuite extends AnyFunSuite {
  private val names: Map[ReplyClass, String] = Map(
    ReplyClass.Transient -> "transient",
    ReplyClass.NoScript -> "script",
    ReplyClass.Full -> "full",
    ReplyClass.Permission -> "permission",
    ReplyClass.Lacking -> "lacking",
    ReplyClass.Setting -> "setting",
    ReplyClass.Damaged -> "damaged",
    ReplyClass.Programming -> "programming"
  )

  private val kinds = Map(
    "full" -> "FULL",
    "permission" -> "PERMISSION",
    "lacking" -> "CONFIG",
    "setting" -> "CONFIG",
    "damaged" -> "FORMAT",
    "programming" -> "INTERNAL")

  test("a reply becomes an error with its advice") {
    Vectors.objects(Vectors.read("replies")).foreach { vector =>
      val reply = Vectors.text(vector, "reply")
      val text = kinds.get(Vectors.text(vector, "class")).fold(ReplyClass.hintOf(reply)) { kind =>
        val error = ReplyClass.failure("trying", reply, "PING")
        assert(error.kind == kind, reply)
        error.getMessage
      }
      Option(vector.get("says")).toSeq.flatMap(Vectors.items).foreach { word =>
        assert(text.contains(word.getAsString), reply)
      }
      Option(vector.get("hides")).foreach(word => assert(!text.contains(word.getAsString)))
      assert(!text.contains("args beginning"))
    }
  }

  test("a reply has its class") {
    Vectors.objects(Vectors.read("replies")).foreach { vector =>
      val reply = Vectors.text(vector, "reply")
      assert(names(ReplyClass.of(reply)) == Vectors.text(vector, "class"), reply)
    }
  }
}
