package org.redisstate.core.format

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.{FormatException, LimitException}

/** The format on random rows, damaged blocks and hostile payloads. */
class FormatRandomSuite extends AnyFunSuite {
  private val seed = sys.props.get("redisstate.seed").fold(System.nanoTime())(_.toLong)
  info(s"seed $seed (again: -Dredisstate.seed=$seed)")
  private val random = new Random(seed)

  private def bytes(length: Int): Array[Byte] = {
    val all = new Array[Byte](length)
    random.nextBytes(all)
    all
  }

  private def element(): Array[Byte] = {
    val value = bytes(random.nextInt(20))
    MultiValue.encode(Seq.fill(1 + random.nextInt(3))(value))
  }

  private def rows(count: Int): Seq[(String, String, String)] =
    Seq
      .fill(count)(Vectors.hex(bytes(2 + random.nextInt(300))))
      .distinct
      .sorted
      .map { key =>
        random.nextInt(10) match {
          case 0 => (key, "remove", "")
          case 1 => (key, "append", Vectors.hex(element()))
          case _ => (
              key,
              "put",
              Vectors.hex(bytes(random.nextInt(if (random.nextInt(50) == 0) 70000 else 300))))
        }
      }

  test("rows come back from blocks as they went in") {
    for (_ <- 1 to 200) {
      val wanted = rows(random.nextInt(300))
      val block = Vectors.block(wanted)
      val stored = Block.encode("d:1:u", "0", block.bytes, block.bytes.length)
      val found = RowBlock.parse(Block.decode("d:1:u", "0", stored))
      assert(Vectors.shown(found) == wanted)
      wanted.zipWithIndex.foreach { case ((key, _, _), i) =>
        val k = Vectors.fromHex(key)
        assert(found.find(k, 0, k.length) == i)
      }
    }
  }

  test("damaged blocks are refused by their check") {
    for (_ <- 1 to 500) {
      val block = Vectors.block(rows(20))
      val stored = Block.encode("d:1:u", "0", block.bytes, block.bytes.length)
      stored(random.nextInt(stored.length)) =
        (stored(random.nextInt(stored.length)) ^ (1 << random.nextInt(8))).toByte
      val cut = stored.take(random.nextInt(stored.length + 1))
      Seq(stored, cut).foreach { hostile =>
        try assert(Vectors.hex(Block.decode("d:1:u", "0", hostile)) == Vectors.hex(block.bytes))
        catch { case _: FormatException => () }
      }
    }
  }

  test("hostile payloads give a FormatException or rows, nothing else") {
    for (_ <- 1 to 5000) {
      val payload =
        if (random.nextBoolean()) bytes(random.nextInt(60))
        else Vectors.block(rows(6)).bytes
      if (payload.nonEmpty) {
        (1 to random.nextInt(4)).foreach(_ =>
          payload(random.nextInt(payload.length)) = random.nextInt().toByte)
      }
      try Vectors.shown(RowBlock.parse(payload))
      catch { case _: FormatException => () }
      try Header.decode(payload)
      catch { case _: FormatException => () }
    }
  }

  test("a huge length claims no memory") {
    val claims = Seq("dd7ffffffe", "92c67fffffff00", "ddffffffff", "92c4020000c97fffffff01")
    claims.foreach(hex => intercept[FormatException](RowBlock.parse(Vectors.fromHex(hex))))
  }

  test("merging two blocks is merging two maps") {
    for (_ <- 1 to 200) {
      val older = rows(100).filter(_._2 == "put")
      val changed = (rows(30) ++ older.filter(_ => random.nextInt(3) == 0).map { case (key, _, _) =>
        if (random.nextBoolean()) (key, "remove", "") else (key, "append", Vectors.hex(element()))
      }).map(r => r._1 -> r).toMap.values.toSeq.sorted
      val model = changed.foldLeft(older.map(r => r._1 -> r._3).toMap) {
        case (map, (key, "remove", _)) => map - key
        case (map, (key, "append", more)) => map.updated(key, map.getOrElse(key, "") + more)
        case (map, (key, _, value)) => map.updated(key, value)
      }
      val merged = RowMerge.merge(Vectors.block(older), Vectors.block(changed), resolve = true)
      assert(Vectors.shown(merged) == model.toSeq.sorted.map { case (k, v) => (k, "put", v) })
      assert(Vectors.shown(RowBlock.parse(merged.bytes)) == Vectors.shown(merged))
    }
  }

  test("large buckets are written in parts that one reader puts together") {
    val wanted = (0 until 3000).map(i => (f"0000$i%08x", "put", Vectors.hex(bytes(100))))
    val huge = ("0000ffffffff", "put", Vectors.hex(bytes(3 << 20)))
    val writer = new SegmentWriter("d:1:u", 1)
    writer.add(0, Vectors.block(wanted :+ huge))
    val entry = writer.finish("-", 3001, None, Nil)
    val segment = Segment(isSnapshot = false, 1, "u", entry)
    val reader = new SegmentReader(segment)
    val headerBlock = writer.allFields.find(_.name == Header.Field).get.block
    val header = reader.header(headerBlock)
    val fields = writer.allFields.filter(_.name != Header.Field)
    assert(header.parts(0) == fields.size && fields.size > 4)
    assert(reader.all(header, headerBlock, fields).flatMap(
      Vectors.shown).toSet == (wanted :+ huge).toSet)
    assert(Vectors.shown(reader.rows(fields.last.name, fields.last.block)).size == 1)
    intercept[FormatException](reader.all(header, headerBlock, fields.drop(1)))
  }

  test("the limits of keys and values") {
    SegmentWriter.checkLimits(SegmentWriter.KeyBytesMax + 2, SegmentWriter.ValueBytesMax, "put")
    intercept[LimitException](SegmentWriter.checkLimits(SegmentWriter.KeyBytesMax + 3, 0, "put"))
    intercept[LimitException](SegmentWriter.checkLimits(2, SegmentWriter.ValueBytesMax + 1, "put"))
  }
}
