package org.redisstate.core.store.loading

import java.util.zip.CRC32

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format._

/** The rows of some deltas, bucket by bucket, against the deltas merged one after the other. */
class ChangedRowsSuite extends AnyFunSuite {
  private val Keys = 60

  private val seed = sys.props.get("redisstate.seed").fold(System.nanoTime())(_.toLong)
  info(s"seed $seed (again: -Dredisstate.seed=$seed)")

  /** Keys in order, each with its hash. */
  private val keys: Seq[(Array[Byte], Int)] = (0 until Keys).map { i =>
    val key = Array[Byte](0, 2) ++ f"key $i%03d".getBytes("UTF-8")
    key -> Bucketing.hash(new CRC32, FamilyKind.Plain, key, 0, key.length)
  }

  /** Rows of some keys: values, removals, and elements to append. */
  private def block(random: Random, of: Seq[(Array[Byte], Int)], whole: Boolean): WholeBlock = {
    val chosen = of.filter(_ => random.nextInt(3) > 0)
    val rows = new RowBlock.Builder(64)
    chosen.foreach { case (key, _) =>
      val value =
        MultiValue.encode(Seq.fill(1 + random.nextInt(2))(random.nextBytes(random.nextInt(9))))
      random.nextInt(if (whole) 1 else 3) match {
        case 0 => rows.add(key, 0, key.length, value, 0, value.length)
        case 1 => rows.addRemoved(key, 0, key.length)
        case _ => rows.addAppended(key, 0, key.length, value, 0, value.length)
      }
    }
    WholeBlock(EncodedField("0", Array.emptyByteArray), 0, rows.result(), chosen.map(_._2).toArray)
  }

  private def ofBucket(bucket: Int, buckets: Int): Seq[(Array[Byte], Int)] =
    keys.filter { case (_, hash) => Bucketing.bucket(hash, buckets) == bucket }

  /** The blocks of a segment; a large bucket may have a second one, which is newer. */
  private def blocksOf(random: Random, buckets: Int): Seq[WholeBlock] =
    (0 until buckets).flatMap { bucket =>
      Seq.fill(1 + random.nextInt(2))(block(random, ofBucket(bucket, buckets), whole = false))
    }

  private def restricted(block: WholeBlock, bucket: Int, buckets: Int): RowBlock = {
    val rows = new RowBlock.Builder(64)
    block.hashes.indices.filter(i => Bucketing.bucket(block.hashes(i), buckets) == bucket)
      .foreach(rows.addFrom(block.rows, _))
    rows.result()
  }

  private def shown(rows: RowBlock): Seq[(Seq[Byte], Seq[Byte])] = (0 until rows.count).map { i =>
    assert(!rows.isRemoved(i) && !rows.isAppended(i))
    rows.bytes.slice(rows.keyOffset(i), rows.keyOffset(i) + rows.keyLength(i)).toSeq ->
      rows.bytes.slice(rows.valueOffset(i), rows.valueOffset(i) + rows.valueLength(i)).toSeq
  }

  test("the changes of a bucket are those of all deltas, one after the other") {
    for (round <- 1 to 300) withClue(s"seed $seed round $round: ") {
      val random = new Random(seed + round)
      val buckets = 1 << random.nextInt(4)
      val deltas = Seq.fill(1 + random.nextInt(6))(
        blocksOf(random, math.min(buckets, 1 << random.nextInt(4)))).flatten
      val changed = new ChangedRows(deltas.toArray, buckets)
      for (bucket <- 0 until buckets) {
        val base = block(random, ofBucket(bucket, buckets), whole = true).rows
        val wanted = deltas.foldLeft(base) { (older, newer) =>
          RowMerge.merge(older, restricted(newer, bucket, buckets), resolve = true)
        }
        assert(shown(RowMerge.merge(base, changed.bucket(bucket), resolve = true)) == shown(wanted))
        val hashes = deltas.flatMap(_.hashes).filter(Bucketing.bucket(_, buckets) == bucket).toSet
        keys.foreach { case (_, hash) =>
          assert(changed.has(bucket, hash) == hashes.contains(hash))
        }
      }
    }
  }
}
