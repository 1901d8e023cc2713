package org.redisstate.core.format

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException

/** Blocks whose rows have one width, which have no index, against the same rows in a map. */
class FixedRowsSuite extends AnyFunSuite {
  private type Rows = Map[String, String]

  private val seed = sys.props.get("redisstate.seed").fold(System.nanoTime())(_.toLong)
  info(s"seed $seed (again: -Dredisstate.seed=$seed)")
  private val random = new Random(seed)

  private def hex(bytes: Int): String = Vectors.hex(random.nextBytes(bytes))

  /** Rows with keys and values of these lengths, some of which have keys of `known`. */
  private def rows(count: Int, keyBytes: Int, valueBytes: Int, known: Rows = Map.empty): Rows = {
    val old = known.keys.filter(_ => random.nextInt(3) == 0)
    (old ++ Seq.fill(count)(hex(keyBytes))).map(_ -> hex(valueBytes)).toMap
  }

  private def block(rows: Rows): RowBlock =
    Vectors.block(rows.toSeq.sorted.map { case (key, value) => (key, "put", value) })

  private def shown(rows: RowBlock): Rows = {
    val all = Vectors.shown(rows)
    assert(all.forall(_._2 == "put"))
    assert(all.map(_._1) == all.map(_._1).sorted)
    all.map { case (key, _, value) => key -> value }.toMap
  }

  /** Widths around those at which the head of a key, or of a value, becomes longer. */
  private val widths = for {
    key <- Seq(2, 3, 18, 255, 256, 300)
    value <- Seq(0, 1, 40, 255, 256, 65535, 65536)
  } yield (key, value)

  test("rows of one width are read as they were written, without an index") {
    widths.foreach { case (keyBytes, valueBytes) =>
      val wanted = rows(1 + random.nextInt(if (valueBytes > 300) 3 else 200), keyBytes, valueBytes)
      val written = block(wanted)
      val read = RowBlock.parse(written.bytes)
      Seq(written, read).foreach { rows =>
        assert(rows.isFixed && rows.isWhole && shown(rows) == wanted)
        wanted.keys.toSeq.sorted.zipWithIndex.foreach { case (key, i) =>
          val k = Vectors.fromHex(key)
          assert(rows.find(k, 0, k.length) == i)
          val other = k.clone()
          other(k.length - 1) = (other(k.length - 1) ^ 1).toByte
          val isThere = wanted.contains(Vectors.hex(other))
          assert((rows.find(other, 0, k.length) >= 0) == isThere)
        }
      }
      assert(written.memoryBytes == read.memoryBytes)
      assert(read.memoryBytes <= read.bytes.length + 64)
    }
  }

  test("one row of another width makes an index") {
    for (_ <- 1 to 100) {
      val some = rows(1 + random.nextInt(50), 18, 40)
      val other = if (random.nextBoolean()) hex(19) -> hex(39) else hex(18) -> hex(41)
      val all = some + other
      val written = block(all)
      Seq(written, RowBlock.parse(written.bytes)).foreach { rows =>
        assert(!rows.isFixed && shown(rows) == all)
      }
    }
  }

  test("new values of known keys go into a copy of the rows") {
    widths.foreach { case (keyBytes, valueBytes) =>
      val older = rows(2 + random.nextInt(if (valueBytes > 300) 3 else 60), keyBytes, valueBytes)
      val newer = rows(0, keyBytes, valueBytes, older) + (older.head._1 -> hex(valueBytes))
      val below = block(older)
      val merged = RowMerge.merge(below, block(newer), resolve = random.nextBoolean())
      assert(merged.isFixed && shown(merged) == older ++ newer)
      assert(shown(below) == older)
      assert(shown(RowBlock.parse(merged.bytes)) == older ++ newer)
    }
  }

  test("merges of blocks with and without an index equal merged maps") {
    for (_ <- 1 to 400) {
      val older = rows(random.nextInt(60), 18, 40)
      val mixed = random.nextInt(3) match {
        case 0 => Map.empty[String, String]
        case 1 => rows(1 + random.nextInt(4), 18, 8)
        case _ => rows(1 + random.nextInt(4), 5, 40)
      }
      val newer = rows(random.nextInt(30), 18, 40, older) ++ mixed
      val merged = RowMerge.merge(block(older), block(newer), resolve = true)
      val both = older ++ newer
      assert(shown(merged) == both)
      val widthsOfRows = both.toSeq.map { case (key, value) => (key.length, value.length) }.toSet
      assert(merged.isFixed == (widthsOfRows.size == 1))
      val back = RowMerge.merge(block(newer), block(older), resolve = true)
      assert(shown(back) == newer ++ older)
      assert(Vectors.shown(RowBlock.parse(back.bytes)) == Vectors.shown(back))
    }
  }

  test("removed rows leave rows of one width") {
    for (_ <- 1 to 100) {
      val older = rows(2 + random.nextInt(60), 18, 40)
      val gone = older.keys.filter(_ => random.nextInt(4) == 0).toSeq
      val newer = Vectors.block(gone.sorted.map(key => (key, "remove", "")))
      assert(newer.count == 0 || !newer.isFixed)
      val merged = RowMerge.merge(block(older), newer, resolve = true)
      assert(shown(merged) == older -- gone)
      assert(merged.isFixed == (merged.count > 0))
    }
  }

  test("a reused builder forgets the widths of its last block") {
    val rows = new RowBlock.Builder(64)
    val bytes = random.nextBytes(100)
    Seq((18, 40), (20, 8), (2, 0)).foreach { case (key, value) =>
      rows.reset()
      rows.add(bytes, 0, key, bytes, key, value)
      val block = rows.result()
      assert(block.isFixed && block.keyLength(0) == key && block.valueLength(0) == value)
    }
    rows.addRemoved(bytes, 0, 3)
    assert(!rows.result().isFixed)
    rows.reset()
    rows.add(bytes, 0, 18, bytes, 18, 40)
    assert(rows.result().isFixed)
  }

  test("heads that are longer than they need to be are read with an index") {
    val key = "c40200"
    val payload = Vectors.fromHex(s"94${key}01c5000141${key}02c5000142")
    val rows = RowBlock.parse(payload)
    assert(!rows.isFixed && shown(rows) == Map("0001" -> "41", "0002" -> "42"))
  }

  test("rows of one width that are damaged are refused") {
    val good = block(rows(20, 18, 40))
    val start = 3
    val stride = (good.bytes.length - start) / good.count
    def refused(change: Array[Byte] => Array[Byte]): Unit = {
      intercept[FormatException](RowBlock.parse(change(good.bytes.clone())))
      ()
    }
    refused(_.dropRight(1))
    refused(_ :+ 0.toByte)
    refused { bytes => System.arraycopy(bytes, start, bytes, start + stride, stride); bytes }
    refused { bytes => bytes(start + stride) = 0; bytes }
    refused { bytes => bytes(start + stride + 20) = 0x92.toByte; bytes }
    refused { bytes => bytes(start + stride + 1) = 17; bytes }
    refused { bytes => bytes(2) = (bytes(2) + 2).toByte; bytes }
    Seq("92c40100c400", "92c4020000c4", "92c4020000c4ff", "92c4020000c67fffffff").foreach { hex =>
      refused(_ => Vectors.fromHex(hex))
    }
  }
}
