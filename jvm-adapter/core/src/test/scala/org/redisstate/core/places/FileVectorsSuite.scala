package org.redisstate.core.places

import java.util.zip.CRC32

import scala.collection.immutable.ArraySeq
import scala.jdk.CollectionConverters._
import scala.util.Random

import com.google.gson.JsonObject
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException
import org.redisstate.core.format._
import org.redisstate.core.ids.PartitionId

/** Places and whole files of tests/vectors, which the Python package reads and writes too. */
final class FileVectorsSuite extends AnyFunSuite {
  import FileVectorsSuite._
  import Vectors._

  private val cases = objects(read("files").getAsJsonObject.get("cases"))
  private val secret = bytes(read("files").getAsJsonObject, "secret")

  test("places are read and printed") {
    val known = read("places").getAsJsonObject
    objects(known.get("good")).foreach { one =>
      val expected =
        if (one.get("file").isJsonNull)
          if (text(one, "gen").isEmpty) Place.Own else Place.Foreign(text(one, "gen"))
        else {
          val file = one.getAsJsonObject("file")
          Place.InFile(
            text(file, "name"),
            file.get("offset").getAsLong,
            file.get("bytes").getAsLong,
            file.get("head").getAsInt)
        }
      assert(Place.parse("d:1:u", text(one, "text")) == expected)
      assert(expected.text == text(one, "text"))
    }
    items(known.get("refused")).map(_.getAsString).foreach { refused =>
      assert(intercept[FormatException](Place.parse("d:1:u", refused)).kind == "FORMAT", refused)
    }
  }

  cases.foreach { one =>
    test(s"the file ${text(one, "name")} is read") {
      val files = new PlayedFiles
      regions(one).foreach { region =>
        files.put(region.place.file, bytes(one, "hex"))
        val reader = open(files, one, region, region.place)
        val found = reader.read(region.values.keys.toSeq)
        assert(region.values.keys.toSeq.zip(found.map(hex)).toMap ==
          region.values.view.mapValues(hex).toMap)
        assert(reader.read(Seq(Entry.BucketsMax.toString, "7/3", "1.9")) == Seq(null, null, null))
      }
    }

    if (one.get("filters").getAsBoolean) test(
      s"the file ${text(one, "name")} is written, byte by byte") {
      val files = new PlayedFiles
      val all = regions(one)
      val sink = files.create(all.head.place.file)
      val writer =
        new BlockFileWriter(sink, idOf(one), all.head.place.file, signer(one), compress = false)
      all.foreach { region =>
        val header = region.values.get(Header.Field)
        val written = writer.write(
          region.segment,
          header,
          BlockFileWriter.names(region.segment, headerOf(one, region)).map(name =>
            name -> region.values.getOrElse(name, null)))
        assert(written.place == region.place)
      }
      sink.close()
      assert(hex(files.bytes(all.head.place.file)) == text(one, "hex"))
      assert(writer.bytes == files.bytes(all.head.place.file).length)
    }

    test(s"a byte of the file ${text(one, "name")} that was changed is found") {
      val random = new Random(1)
      val whole = bytes(one, "hex")
      regions(one).foreach { region =>
        val place = region.place
        val from = (place.offset + place.bytes - place.headBytes).toInt
        (0 until 400).foreach { _ =>
          val files = new PlayedFiles
          val bent = whole.clone
          val at = from + random.nextInt(place.headBytes)
          bent(at) = (bent(at) ^ (1 << random.nextInt(8))).toByte
          files.put(place.file, bent)
          val header = region.values.get(Header.Field)
          val headerAt = from + place.headBytes - tailBytes(whole, place) -
            RegionBlocks.FooterBytes - header.fold(0)(_.length)
          // What is in the header is found when it is decoded, as if it came from Redis.
          val inHeader = at >= headerAt && at < headerAt + header.fold(0)(_.length)
          if (!inHeader)
            intercept[FormatException](open(files, one, region, place)): Unit
          else open(files, one, region, place): Unit
        }
      }
    }
  }

  test("no head of random bytes, or of another segment, is taken, or allocates much") {
    val one = cases.head
    val random = new Random(2)
    val all = regions(one)
    val whole = bytes(one, "hex")
    (0 until 2000).foreach { _ =>
      val files = new PlayedFiles
      val region = all(random.nextInt(all.size))
      val bytes = whole.clone
      val place = region.place.copy(
        offset = random.nextInt(whole.length).toLong,
        bytes = 8 + random.nextInt(whole.length).toLong)
      val bent = place.copy(headBytes = 8 + random.nextInt(place.bytes.toInt - 7))
      files.put(bent.file, bytes)
      try { open(files, one, region, bent): Unit; assert(bent == region.place) }
      catch { case _: FormatException | _: FileMissing => () }
    }
    all.zip(all.tail).foreach { case (a, b) =>
      val files = new PlayedFiles
      files.put(a.place.file, whole)
      val found = intercept[FormatException](open(files, one, a.copy(place = b.place), b.place))
      assert(found.getMessage.contains(a.place.file))
    }
  }

  test("directories of random bytes are refused or read") {
    val random = new Random(3)
    val plain = RegionChunk(8, Seq(3, 0, 70000), Map(2 -> Seq(5, 6)))
    assert(RegionChunk.decode(plain.encode) == plain)
    val filter = HashFilter.of(Array(1, 2, 3), 3)
    val filtered = RegionChunk.decode(plain.copy(filter = filter).encode)
    assert(filtered.copy(filter = None) == plain)
    assert(hex(filtered.filter.get.toBytes) == hex(filter.get.toBytes))
    (0 until 20000).foreach { round =>
      val good = if (round % 2 == 0) plain.encode else filtered.encode
      val bent = good.clone
      (0 to random.nextInt(3)).foreach(_ =>
        bent(random.nextInt(bent.length)) = random.nextInt(256).toByte)
      val cut = bent.take(bent.length - random.nextInt(4))
      try RegionChunk.decode(cut): Unit
      catch { case _: FormatException => () }
      try RegionTail.decode(cut): Unit
      catch { case _: FormatException => () }
    }
  }

  test("a directory that is held takes four bytes for a length") {
    val lengths = RegionChunk.decode(RegionChunk(8, Seq(3, 0, 70000), Map.empty).encode).lengths
    assert(lengths.isInstanceOf[ArraySeq.ofInt])
  }

  test("a tail whose numbers exceed those of a region is FORMAT") {
    val one = cases.head
    val region = regions(one).find(_.values.contains(Header.Field)).get
    val blocks = new RegionBlocks(idOf(one), region.segment, signer(one))
    val header = region.values(Header.Field)
    Seq(Seq(Long.MaxValue - 1), Seq(8L, Long.MaxValue - 1), Seq(Long.MaxValue - 1, 8L)).foreach {
      offsets =>
        val listed = offsets.zipWithIndex.map { case (at, i) => DirectoryBlock(s"i$i", at, 10) }
        val tail = blocks.seal(
          RegionTail.Name,
          RegionTail.of(idOf(one), region.segment, header.length, listed).encode,
          compress = false)
        val out = java.nio.ByteBuffer.allocate(
          header.length + tail.length + RegionBlocks.FooterBytes)
        out.put(header).put(tail).putInt(tail.length).put(RegionBlocks.Magic)
        val files = new PlayedFiles
        val place =
          region.place.copy(offset = 0, bytes = out.capacity.toLong, headBytes = out.capacity)
        files.put(place.file, out.array)
        intercept[FormatException](open(files, one, region, place)): Unit
    }
  }

  test("numbers above 2^31 keep their value") {
    Seq(0L, 127, 128, 1L << 31, (1L << 32) - 1, 1L << 32, 1L << 40, Long.MaxValue).foreach { n =>
      val out = new MsgpackWriter(16)
      out.putUlong(n)
      assert(new MsgpackReader(out.toBytes).ulong() == n)
    }
  }

  test("no filter of a region denies a row of it") {
    var filtered = 0
    cases.foreach { one =>
      regions(one).foreach { region =>
        val files = new PlayedFiles
        files.put(region.place.file, bytes(one, "hex"))
        val reader = open(files, one, region, region.place)
        val filter = reader.filter.get
        assert(one.get("filters").getAsBoolean || (filter eq RowFilter.Unknown))
        if (filter ne RowFilter.Unknown) filtered += 1
        val plain = new RegionBlocks(idOf(one), region.segment, signer(one))
        region.values.filter { case (name, _) => name != Header.Field && !name.contains('/') }
          .foreach { case (name, value) =>
            hashesOf(region, name, plain.open(name, value)).foreach(hash =>
              assert(!filter.denies(hash)))
          }
      }
    }
    assert(filtered > 10)
  }

  /** Hashes of all kinds of families that lead to the bucket of a row. */
  private def hashesOf(region: Region, name: String, payload: Array[Byte]): Seq[Int] = {
    val rows = RowBlock.parse(payload)
    val found = Seq.newBuilder[Int]
    (0 until rows.count).foreach { i =>
      Bucketing.hashesIn(
        FieldName.parse(name).number,
        region.segment.entry.buckets,
        new CRC32,
        rows.bytes,
        rows.keyOffset(i),
        rows.keyLength(i))(found += _)
    }
    assert(found.result().nonEmpty)
    found.result()
  }

  private def regions(one: JsonObject): Seq[Region] = objects(one.get("regions")).map { region =>
    val place = Place.parse("", text(region, "place")).asInstanceOf[Place.InFile]
    val segment = Segment.parse(text(region, "field"), text(region, "entry"))
    assert(segment.ident == text(region, "ident"))
    Region(
      segment,
      place,
      region.getAsJsonObject("values").entrySet.asScala
        .map(e => e.getKey -> bytes(e.getValue)).toMap)
  }

  private def idOf(one: JsonObject) = PartitionId(
    "",
    text(one, "gen"),
    one.get("operator").getAsLong,
    one.get("partition").getAsInt,
    text(one, "store"))

  private def signer(one: JsonObject) =
    Option.when(one.get("signed").getAsBoolean)(new BlockSigner(secret))

  private def headerOf(one: JsonObject, region: Region): Header = {
    val blocks = new RegionBlocks(idOf(one), region.segment, signer(one))
    val value = region.values.get(Header.Field).map(blocks.plain(Header.Field, _))
    new SegmentReader(region.segment).header(value.orNull)
  }

  private def open(files: PlayedFiles, one: JsonObject, region: Region, at: Place.InFile) =
    BlockFileReader.open(files, idOf(one), region.segment, at, signer(one))

  private def tailBytes(whole: Array[Byte], place: Place.InFile): Int =
    java.nio.ByteBuffer.wrap(whole).getInt(
      (place.offset + place.bytes).toInt - RegionBlocks.FooterBytes)
}

private object FileVectorsSuite {
  final case class Region(
      segment: Segment,
      place: Place.InFile,
      values: Map[String, Array[Byte]])
}
