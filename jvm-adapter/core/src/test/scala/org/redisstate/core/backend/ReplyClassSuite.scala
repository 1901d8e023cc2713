package org.redisstate.core.backend

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.Vectors

/** What error replies mean, on the vectors that the Python package is tested on too. */
final class ReplyClassSuite extends AnyFunSuite {
  private val names: Map[ReplyClass, String] = Map(
    ReplyClass.Transient -> "transient",
    ReplyClass.NoScript -> "script",
    ReplyClass.Full -> "full",
    ReplyClass.Permission -> "permission",
    ReplyClass.Programming -> "programming"
  )

  test("a reply has its class") {
    Vectors.objects(Vectors.read("replies")).foreach { vector =>
      val reply = Vectors.text(vector, "reply")
      assert(names(ReplyClass.of(reply)) == Vectors.text(vector, "class"), reply)
    }
  }
}
