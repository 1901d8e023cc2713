package org.redisstate.core.local

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.MultiValue

/** Appends cost the appended bytes, however long the list is. */
class AppendSuite extends AnyFunSuite {
  private val Values = 10000

  private def element(i: Int): Array[Byte] =
    MultiValue.encode(Seq(f"value $i%014d".getBytes("UTF-8")))

  private def key(i: Int): Array[Byte] = Array[Byte](0, 2, i.toByte)

  private def append(layer: Layer, k: Array[Byte], value: Array[Byte]): Unit =
    layer.append(k(2).toInt, k, 0, k.length, value, 0, value.length)

  private def value(layer: Layer, k: Array[Byte]): Seq[Byte] = {
    val out = new Slice
    layer.value(layer.find(k(2).toInt, k, 0, k.length), out)
    out.array.slice(out.offset, out.offset + out.length).toSeq
  }

  for (keys <- Seq(1, 7))
    test(s"$Values values appended to $keys lists write some times their bytes") {
      val layer = new Layer(16)
      (0 until Values).foreach(i => append(layer, key(i % keys), element(i)))
      val appended = Values * element(0).length
      assert(layer.usedBytes < 4 * appended + keys * 64)
      (0 until keys).foreach { k =>
        val wanted = (k until Values by keys).flatMap(element(_).toSeq)
        assert(value(layer, key(k)) == wanted)
      }
      assert(layer.rows == keys && layer.isAppended(layer.find(0, key(0), 0, 3)))
    }

  test("a list that grows in its place does not change what was read of it") {
    val layer = new Layer(16)
    (0 until 40).foreach(i => append(layer, key(0), element(i)))
    val before = new Slice
    layer.value(layer.find(0, key(0), 0, 3), before)
    val shown = before.array.slice(before.offset, before.offset + before.length).toSeq
    (40 until 80).foreach(i => append(layer, key(0), element(i)))
    assert(before.array.slice(before.offset, before.offset + before.length).toSeq == shown)
    assert(shown == (0 until 40).flatMap(element(_).toSeq))
  }

  test("a list that grows takes no more than its bytes into a merged layer") {
    val layer = new Layer(16)
    (0 until Values).foreach(i => append(layer, key(0), element(i)))
    val merged = Layer.merge(List(layer))
    assert(merged.usedBytes < Values * element(0).length + 64)
    assert(value(merged, key(0)) == value(layer, key(0)))
  }
}
