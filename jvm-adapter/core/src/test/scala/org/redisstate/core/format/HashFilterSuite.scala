package org.redisstate.core.format

import java.util.zip.CRC32

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException
import org.redisstate.core.places.RegionChunk

/** Filters of tests/vectors, which the Python package makes too. */
final class HashFilterSuite extends AnyFunSuite {
  import Vectors._

  private val known = read("filters").getAsJsonObject

  test("a filter has the bits of its hashes, and denies others") {
    objects(known.get("cases")).foreach { one =>
      val hashes = items(one.get("hashes")).map(_.getAsLong.toInt).toArray
      val made = HashFilter.of(hashes.clone, hashes.length).get
      assert(hex(made.toBytes) == text(one, "filter"))
      assert(!hashes.exists(made.denies))
      assert(items(one.get("denied")).map(_.getAsLong.toInt).forall(made.denies))
      assert(hashes.forall(!HashFilter.read(made.toBytes).denies(_)))
    }
  }

  test("equal hashes count once") {
    val once = HashFilter.of(Array(5, 7), 2).get
    val often = HashFilter.of(Array.fill(500)(Seq(7, 5)).flatten, 1000).get
    assert(hex(once.toBytes) == hex(often.toBytes))
  }

  test("a key whose kind is not known has the hashes that lead to its bucket") {
    objects(known.get("rows")).foreach { one =>
      val key = bytes(one, "key")
      val found = Seq.newBuilder[Long]
      Bucketing.hashesIn(
        one.get("bucket").getAsInt,
        one.get("buckets").getAsInt,
        new CRC32,
        key,
        0,
        key.length)(found += _ & 0xffffffffL)
      assert(found.result().distinct.sorted == items(one.get("hashes")).map(_.getAsLong))
    }
  }

  test("a directory block with a filter of a wrong length is FORMAT") {
    val directories = known.getAsJsonObject("directories")
    assert(RegionChunk.decode(bytes(directories, "good")).filter.nonEmpty)
    items(directories.get("refused")).foreach { refused =>
      intercept[FormatException](RegionChunk.decode(bytes(refused))): Unit
    }
    intercept[FormatException](HashFilter.read(new Array[Byte](HashFilter.BytesMax + 32))): Unit
  }

  test("one in a hundred absent hashes is not denied") {
    val random = new Random(11)
    val made = HashFilter.of(Array.fill(7800)(random.nextInt()), 7800).get
    assert(made.toBytes.length == 9760)
    val found = (0 until 200000).count(_ => !made.denies(random.nextInt()))
    assert(found > 1600 && found < 3200)
  }

  test("a filter that would be too long is left out") {
    val most = HashFilter.BytesMax / 32 * 256 / 10
    assert(HashFilter.of(Array.tabulate(most)(identity), most).nonEmpty)
    assert(HashFilter.of(Array.tabulate(most + 1)(identity), most + 1).isEmpty)
  }

  test("a filter of several segments denies what each of them denies") {
    val a = HashFilter.of(Array(1), 1).get
    val b = HashFilter.of(Array(2), 1).get
    val both = RowFilter.allOf(Seq(a, RowFilter.Nothing, b))
    assert(!both.denies(1) && !both.denies(2) && both.denies(3))
    assert(both.bytes == a.bytes + b.bytes)
    assert(RowFilter.allOf(Seq(a, RowFilter.Unknown)) eq RowFilter.Unknown)
    assert(RowFilter.allOf(Nil).denies(1))
  }
}
