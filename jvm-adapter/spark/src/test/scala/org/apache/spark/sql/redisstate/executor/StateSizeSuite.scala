package org.apache.spark.sql.redisstate.executor

import org.scalatest.funsuite.AnyFunSuite

/** Bytes of a partition, of which another checkpoint may have some. */
final class StateSizeSuite extends AnyFunSuite {
  private val own = Seq(
    "f" -> "2",
    "o" -> "3",
    "d:3:three" -> "two 5 90 4 100 64 7 -",
    "d:2:two" -> "one 5 90 4 20 64 7 -",
    "s:2:two" -> "writer 5 90 4 3000 64 7 4 h")

  private def bytesOf(fields: Seq[(String, String)]): Long =
    StateSize.bytesOf(fields.flatMap { case (field, value) => Seq(field, value) })

  test("what the manifest names is counted, and what was set aside") {
    assert(bytesOf(own) == 3120)
    val aside = Seq(
      "z:d:1:one" -> "d:1:one - 5 90 4 7 64 7 -",
      "z:s:1:other" -> "s:1:one other 5 90 4 40000 64 7 h",
      "y:d:1:one" -> "keep.a",
      "x:keep.a" -> "1 one 0 keep d:1:one s:1:other"
    )
    assert(bytesOf(own ++ aside) == 3120 + 7 + 40000)
  }

  test("what another checkpoint has is counted there") {
    val place = "p " + "a" * 32
    assert(bytesOf(own :+ ("a:s:2:writer" -> place)) == 120)
    assert(bytesOf(own :+ ("a:d:3:three" -> place)) == 3020)
    val aside = Seq("z:d:1:one" -> "d:1:one - 5 90 4 7 64 7 -", "a:d:1:one" -> place)
    assert(bytesOf(own ++ aside) == 3120)
  }

  test("what is no entry counts nothing") {
    assert(bytesOf(Seq("d:1:one" -> "damaged", "z:d:2:two" -> "", "s:3:three" -> "")) == 0)
  }
}
