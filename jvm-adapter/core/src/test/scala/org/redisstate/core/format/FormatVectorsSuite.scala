package org.redisstate.core.format

import java.util.zip.CRC32

import com.google.gson.JsonObject
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException
import org.redisstate.core.ids.Pin

/** The format on the vectors that Python is tested on too. */
class FormatVectorsSuite extends AnyFunSuite {
  import Vectors._

  private def refused(what: String)(body: => Any): Unit = withClue(what) {
    intercept[FormatException](body)
    ()
  }

  test("blocks are read, and written to the same bytes where they are not compressed") {
    val file = read("blocks").getAsJsonObject
    val ident = text(file, "ident")
    objects(file.get("good")).foreach { one =>
      withClue(text(one, "name")) {
        val field = text(one, "field")
        val payload = bytes(one, "payload")
        assert(hex(Block.decode(ident, field, bytes(one, "block"))) == hex(payload))
        if (one.get("codec").getAsInt == 0) {
          assert(hex(Block.encode(ident, field, payload, payload.length, compress = false)) == text(
            one,
            "block"))
        }
      }
    }
    objects(file.get("bad")).foreach { one =>
      refused(text(one, "name"))(Block.decode(ident, text(one, "field"), bytes(one, "block")))
    }
  }

  test("blocks are signed for their places, and nothing else is taken for signed") {
    val file = read("signatures").getAsJsonObject
    val signer = new BlockSigner(bytes(file, "secret"))
    def at(one: JsonObject): (Array[Byte], String) = (text(one, "key").getBytes, text(one, "field"))
    val (key, field) = at(file)
    assert(hex(signer.signed(key, field, bytes(file, "block"))) == text(file, "value"))
    assert(hex(signer.opened(key, field, bytes(file, "value"))) == text(file, "block"))
    objects(file.get("bad")).foreach { one =>
      val (otherKey, otherField) = at(one)
      refused(text(one, "name"))(signer.opened(otherKey, otherField, bytes(one, "value")))
    }
  }

  test("rows are read, and written to the same bytes") {
    val file = read("rows").getAsJsonObject
    objects(file.get("good")).foreach { one =>
      withClue(text(one, "name")) {
        val wanted = rows(one.get("rows"))
        assert(shown(RowBlock.parse(bytes(one, "payload"))) == wanted)
        assert(hex(block(wanted).bytes) == text(one, "payload"))
      }
    }
    objects(file.get("bad")).foreach(one =>
      refused(text(one, "name"))(RowBlock.parse(bytes(one, "payload"))))
  }

  test("keys fall into the same buckets") {
    val file = read("buckets").getAsJsonObject
    val crc = new CRC32
    objects(file.get("good")).foreach { one =>
      val key = bytes(one, "key")
      val hash = Bucketing.hash(crc, FamilyKind.parse(text(one, "kind")), key, 0, key.length)
      assert((hash & 0xffffffffL) == one.get("hash").getAsLong)
      one.get("buckets").getAsJsonObject.entrySet.forEach { e =>
        assert(Bucketing.bucket(hash, e.getKey.toInt) == e.getValue.getAsInt)
        ()
      }
    }
    objects(file.get("bad")).foreach { one =>
      val key = bytes(one, "key")
      refused(text(one, "key"))(
        Bucketing.hash(crc, FamilyKind.parse(text(one, "kind")), key, 0, key.length))
    }
    objects(file.get("counts")).foreach { one =>
      assert(Bucketing.bucketsFor(one.get("rows").getAsLong, one.get("rawBytes").getAsLong) ==
        one.get("buckets").getAsInt)
    }
  }

  test("entries and manifest fields are read and written") {
    val file = read("entries").getAsJsonObject
    objects(file.get("good")).foreach { one =>
      val entry = Entry.parse(text(one, "text"))
      assert(entry.text == text(one, "text"))
      assert(entry == Entry(
        text(one, "ref"),
        one.get("rows").getAsLong,
        one.get("live").getAsLong,
        one.get("blocks").getAsInt,
        one.get("bytes").getAsLong,
        one.get("buckets").getAsInt,
        one.get("checksum").getAsLong,
        one.get("complete").getAsBoolean,
        one.get("header").getAsBoolean,
        one.get("internal").getAsLong,
        Option(one.get("time")).fold(0L)(_.getAsLong)
      ))
    }
    objects(file.get("bad")).foreach(one =>
      refused(text(one, "text"))(Entry.parse(text(one, "text"))))
    val fields = file.get("fields").getAsJsonObject
    objects(fields.get("good")).foreach { one =>
      val segment = Segment.parse(text(one, "field"), "w 0 0 0 0 1 0 -")
      assert(segment.isSnapshot == one.get("snapshot").getAsBoolean)
      assert(segment.version == one.get("version").getAsLong && segment.uid == text(one, "uid"))
    }
    items(fields.get("bad")).foreach(f =>
      refused(f.getAsString)(Segment.parse(f.getAsString, "w 0 0 0 0 1 0 -")))
  }

  test("hot runs are read") {
    val runs = read("entries").getAsJsonObject.get("hotRuns").getAsJsonObject
    objects(runs.get("good")).foreach { one =>
      val segment = Segment.parse(text(one, "field"), text(one, "text"))
      assert(segment.field == text(one, "field") && segment.ident == text(one, "ident"))
      assert(segment.over.contains(Pin(one.get("version").getAsLong, text(one, "uid"))))
      assert(segment.entry.text == text(one, "entry"))
      assert(segment.isHotRun && !segment.isBase)
    }
    items(runs.get("bad")).foreach(one =>
      refused(one.getAsString)(Segment.parse("r:12:u", one.getAsString)))
  }

  test("headers are read, and written to the same bytes") {
    val file = read("headers").getAsJsonObject
    objects(file.get("good")).foreach { one =>
      withClue(text(one, "name")) {
        val header = Header.decode(bytes(one, "payload"))
        val wanted = one.get("header").getAsJsonObject
        assert(header.families == families(wanted.get("families")))
        assert(header.ordered.map { case (id, keys) => id.toString -> keys.map(hex) }.toMap ==
          names(wanted.get("ordered").getAsJsonObject)(keys => items(keys).map(_.getAsString)))
        assert(header.parts.map { case (b, n) => b.toString -> n } ==
          names(wanted.get("parts").getAsJsonObject)(_.getAsInt))
        assert(shown(header.tombstones) == shown(tombstones(wanted.get("tombstones"))))
        val highest = wanted.get("highest")
        assert(
          header.highestId == (if (highest.isJsonNull) None else Some(highest.getAsInt)))
        assert(hex(header.encode) == text(one, "payload"))
      }
    }
    objects(file.get("bad")).foreach(one =>
      refused(text(one, "name"))(Header.decode(bytes(one, "payload"))))
  }

  private def names[A](of: JsonObject)(value: com.google.gson.JsonElement => A): Map[String, A] = {
    val all = Map.newBuilder[String, A]
    of.entrySet.forEach(e => { all += e.getKey -> value(e.getValue); () })
    all.result()
  }

  private def content(one: JsonObject): (Header, Seq[RowBlock]) = {
    val segment = Segment.parse(text(one, "field"), text(one, "entry"))
    val all = fields(one.get("fields"))
    val reader = new SegmentReader(segment)
    val block = all.getOrElse(Header.Field, null)
    val header = reader.header(block)
    val rest = (all - Header.Field).map { case (name, bytes) => EncodedField(name, bytes) }.toSeq
    header -> reader.all(header, block, rest)
  }

  test("segments are read whole") {
    val file = read("segments").getAsJsonObject
    objects(file.get("good")).foreach { one =>
      withClue(text(one, "name")) {
        assert(Segment.parse(text(one, "field"), text(one, "entry")).ident == text(one, "ident"))
        val (header, blocks) = content(one)
        val found = blocks.flatMap(shown).map(row => row._1 -> row).toMap.values.toSeq.sorted
        assert(found == rows(one.get("rows")).sorted)
        assert(header.families == families(one.get("families")))
        assert(shown(header.tombstones) == shown(tombstones(one.get("tombstones"))))
      }
    }
    objects(file.get("bad")).foreach(one => refused(text(one, "name"))(content(one)))
  }

  test("segments whose buckets have one part are written to the same bytes") {
    val good = objects(read("segments").getAsJsonObject.get("good"))
    val tables = good.flatMap(one => families(one.get("families"))).flatten
    val simple = good.filter(one => content(one)._1.parts.isEmpty)
    assert(simple.size > 5)
    simple.foreach { one =>
      withClue(text(one, "name")) {
        val table = families(one.get("families")).getOrElse(
          tables.groupBy(_.id).values.map(_.last).toSeq)
        val kinds = table.map(f => f.id -> f.kind).toMap
        val segment = Segment.parse(text(one, "field"), text(one, "entry"))
        val writer = new SegmentWriter(segment.ident, segment.entry.buckets, compress = false)
        val crc = new CRC32
        val all = rows(one.get("rows"))
        def id(key: String): Int = Integer.parseInt(key.take(4), 16)
        val (ordered, hashed) = all.partition(row => kinds(id(row._1)).ordered)
        hashed
          .groupBy { case (key, _, _) =>
            val k = fromHex(key)
            Bucketing.bucket(
              Bucketing.hash(crc, kinds(id(key)), k, 0, k.length),
              segment.entry.buckets)
          }
          .foreach { case (bucket, of) => writer.add(bucket, block(of.sorted)) }
        ordered.groupBy(row => id(row._1)).foreach { case (f, of) =>
          writer.addOrdered(f, block(of.sorted))
        }
        val entry = writer.finish(
          segment.entry.ref,
          segment.entry.live,
          families(one.get("families")),
          tombstones(one.get("tombstones")),
          segment.entry.complete,
          time = segment.entry.time)
        val written = writer.allFields.map(f => f.name -> hex(f.block)).toMap
        assert(written == fields(one.get("fields")).map { case (n, b) => n -> hex(b) })
        assert(entry.text == text(one, "entry"))
      }
    }
  }
}
