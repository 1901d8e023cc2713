package org.redisstate.core.local

import scala.collection.immutable.TreeMap
import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.format.{Family, FamilyKind, MultiValue, Tombstone, Vectors}

/**
 * The local state against a plain map, over random versions that share what they have in common.
 */
class ContentSuite extends AnyFunSuite {
  private val seed = sys.props.get("redisstate.seed").fold(System.nanoTime())(_.toLong)
  info(s"seed $seed (again: -Dredisstate.seed=$seed)")

  private val families = Seq(
    Family(0, "default", FamilyKind.Plain, Nil, "", "", multiValue = false, internal = false),
    Family(1, "prefixed", FamilyKind.Prefix, Seq(1), "", "", multiValue = false, internal = false),
    Family(2, "lists", FamilyKind.Plain, Nil, "", "", multiValue = true, internal = false),
    Family(3, "ordered", FamilyKind.Range, Seq(0), "", "", multiValue = false, internal = false)
  )
  private val hashOf = KeyHash.of(families)
  private type Rows = TreeMap[String, String]

  private def key(random: Random): Array[Byte] = {
    val n = random.nextInt(400)
    random.nextInt(4) match {
      case 1 => Array[Byte](0, 1, 1, 0, 0, 0, (n % 7).toByte, (n >> 8).toByte, n.toByte)
      case family => Array[Byte](0, family.toByte, (n >> 8).toByte, n.toByte)
    }
  }

  private def change(random: Random, layer: Layer, before: Rows): Rows = {
    var rows = before
    for (_ <- 1 to random.nextInt(120)) {
      val k = key(random)
      val name = Vectors.hex(k)
      val hash = hashOf(k, 0, k.length)
      val list = k(1) == 2
      val value =
        if (list) MultiValue.encode(Seq(Array(random.nextInt().toByte)))
        else random.nextBytes(random.nextInt(12))
      random.nextInt(8) match {
        case 0 | 1 =>
          layer.remove(hash, k, 0, k.length)
          rows -= name
        case n if list && n < 6 =>
          layer.append(hash, k, 0, k.length, value, 0, value.length)
          rows = rows.updated(name, rows.getOrElse(name, "") + Vectors.hex(value))
        case 7 if random.nextInt(20) == 0 =>
          val range = Tombstone(random.nextInt(4), bound(random), bound(random))
          layer.clear(range)
          rows = rows.filterNot { case (name, _) =>
            val bytes = Vectors.fromHex(name)
            range.covers(bytes, 0, bytes.length)
          }
        case _ =>
          layer.put(hash, k, 0, k.length, value, 0, value.length)
          rows = rows.updated(name, Vectors.hex(value))
      }
    }
    rows
  }

  private def bound(random: Random): Option[Array[Byte]] =
    if (random.nextBoolean()) None
    else Some(Array((random.nextInt(2)).toByte, random.nextInt().toByte))

  private def all(rows: RowIterator): Seq[(String, String)] = {
    val key, value = new Slice
    val found = Seq.newBuilder[(String, String)]
    while (rows.next(key, value)) {
      found += Vectors.hex(key.array, key.offset, key.length) ->
        Vectors.hex(value.array, value.offset, value.length)
    }
    found.result()
  }

  private def compare(content: Content, model: Rows, random: Random): Unit = {
    for (f <- families) {
      val wanted = model.toSeq.filter(_._1.startsWith(f"${f.id}%04x"))
      val found = all(content.iterator(f.id, f.kind.ordered, hashOf))
      assert((if (f.kind.ordered) found else found.sorted) == wanted, s"family ${f.name}")
    }
    val slice = new Slice
    for (_ <- 1 to 200) {
      val k = key(random)
      val found = content.get(hashOf(k, 0, k.length), k, 0, k.length, slice)
      assert(model.get(Vectors.hex(k)) ==
        (if (found) Some(Vectors.hex(slice.array, slice.offset, slice.length)) else None))
    }
    for (p <- 0 to 6) {
      val prefix = Array[Byte](0, 1, 1, 0, 0, 0, p.toByte)
      val found = all(content.prefixScan(hashOf(prefix, 0, prefix.length), prefix, prefix.length))
      assert(found.sorted == model.toSeq.filter(_._1.startsWith(Vectors.hex(prefix))))
    }
    val range = Tombstone(3, bound(random), bound(random))
    assert(all(content.rangeScan(range, hashOf)) == model.toSeq.filter { case (name, _) =>
      val bytes = Vectors.fromHex(name)
      range.covers(bytes, 0, bytes.length)
    })
  }

  test("versions equal the model, older ones too, through folding, merging and compressing") {
    for (round <- 1 to 40) {
      val random = new Random(seed + round)
      withClue(s"seed $seed round $round: ") {
        var versions = List((Content.empty(), TreeMap.empty[String, String]))
        for (_ <- 1 to 12) {
          val (below, model) = versions.head
          val layer = new Layer(4)
          val rows = change(random, layer, model)
          val above = below.over(List(if (random.nextBoolean()) layer.trimmed else layer))
          val kept = random.nextInt(4) match {
            case 0 => Content.fold(above, hashOf)
            case 1 => above.merged(random.nextInt(4000).toLong)
            case _ => above
          }
          if (random.nextInt(3) == 0)
            kept.base.compress(Long.MaxValue, everything = random.nextBoolean())
          versions = (kept, rows) :: versions
        }
        versions.take(4).foreach { case (content, model) => compare(content, model, random) }
      }
    }
  }

  test("scans from the front equal the model while the front moves, in versions that share it") {
    def ordered(n: Int): Array[Byte] = Array(0, 3, (n >> 8).toByte, n.toByte)
    for (round <- 1 to 200) {
      val random = new Random(seed + round)
      withClue(s"seed $seed round $round: ") {
        var versions = List((Content.empty(), TreeMap.empty[String, String]))
        for (_ <- 1 to 10) {
          val (below, model) = versions(random.nextInt(math.min(2, versions.length)))
          val layer = new Layer(4)
          var rows = model
          def put(n: Int): Unit = {
            val k = ordered(n)
            layer.put(hashOf(k, 0, k.length), k, 0, k.length, k, 0, k.length)
            rows = rows.updated(Vectors.hex(k), Vectors.hex(k))
          }
          rows.keys.take(random.nextInt(150)).foreach { name =>
            val k = Vectors.fromHex(name)
            if (random.nextInt(30) > 0) layer.remove(hashOf(k, 0, k.length), k, 0, k.length)
            else layer.clear(Tombstone(3, Some(k.drop(2)), Some(k.drop(2) :+ 0.toByte)))
            rows -= name
          }
          for (_ <- 1 to random.nextInt(150)) put(200 + random.nextInt(800))
          if (random.nextInt(4) == 0) put(random.nextInt(1000))
          val above = below.over(List(layer.trimmed))
          val kept = random.nextInt(8) match {
            case 0 => Content.fold(above, hashOf)
            case 1 => above.merged(random.nextInt(4000).toLong)
            case _ => above
          }
          versions = (kept, rows) :: versions
          versions.take(3).filter(_ => random.nextBoolean()).foreach { case (content, model) =>
            val from =
              if (random.nextInt(3) > 0) None else Some(ordered(random.nextInt(1000)).drop(2))
            val to = if (random.nextBoolean()) None else Some(ordered(random.nextInt(1000)).drop(2))
            val range = Tombstone(3, from, to)
            val unfinished = content.rangeScan(range, hashOf)
            unfinished.next(new Slice, new Slice)
            val wanted = model.toSeq.filter { case (name, _) =>
              val bytes = Vectors.fromHex(name)
              range.covers(bytes, 0, bytes.length)
            }
            assert(all(content.rangeScan(range, hashOf)) == wanted)
          }
        }
      }
    }
  }

  test("many rows spread over more buckets, and memory is what they need") {
    val count = 100000
    val layer = new Layer(count)
    val key = new Array[Byte](34)
    val value = new Array[Byte](24)
    (0 until count).foreach { i =>
      java.nio.ByteBuffer.wrap(key).putInt(10, i)
      layer.put(hashOf(key, 0, key.length), key, 0, key.length, value, 0, value.length)
    }
    val content = Content.fold(Content.empty().over(List(layer)), hashOf)
    assert(content.base.buckets == 1024 && content.base.rowsHere.contains(count.toLong))
    assert(content.base.memoryBytes < 70L * count)
    content.base.compress(Long.MaxValue, everything = true)
    assert(content.base.memoryBytes < 40L * count)
    val slice = new Slice
    assert(content.get(hashOf(key, 0, key.length), key, 0, key.length, slice) && slice.length == 24)
  }

  test("a growing number of buckets is passed in order where the caller wants it") {
    def rows(keys: Range): Layer = {
      val layer = new Layer(keys.size)
      val key = new Array[Byte](34)
      keys.foreach { i =>
        java.nio.ByteBuffer.wrap(key).putInt(10, i)
        layer.put(hashOf(key, 0, key.length), key, 0, key.length, key, 0, key.length)
      }
      layer
    }
    val small = Content.fold(Content.empty().over(List(rows(0 until 1000))), hashOf)
    val content = small.over(List(rows(500 until 20000)))
    val passed = Seq(true, false).map { inOrder =>
      val (buckets, pass) = Content.folding(content, hashOf, 20000, Expiry.None, inOrder)
      assert(buckets > small.base.buckets && small.base.buckets > 1)
      val found = mutable.ArrayBuffer.empty[(Int, Int)]
      pass((bucket, rows) => found += bucket -> rows.count)
      found
    }
    assert(passed.head.map(_._1) == passed.head.indices)
    assert(passed.head == passed.last.sortBy(_._1))
    assert(passed.head.map(_._2).sum == 20000)
  }

  test("entries come in key order, whatever their keys have in common") {
    val random = new Random(seed)
    for (round <- 1 to 40) {
      withClue(s"seed $seed round $round: ") {
        val start = Array[Byte](0, 3) ++ random.nextBytes(random.nextInt(12))
        val keys = Seq.fill(random.nextInt(400)) {
          val rest = Array.fill(random.nextInt(14))((random.nextInt(4) - 2).toByte)
          start ++ rest
        }
        val layer = new Layer(4)
        keys.foreach(k => layer.put(hashOf(k, 0, k.length), k, 0, k.length, k, 0, k.length))
        val rows = layer.rowsOf(3)
        val found = (0 until rows.count).map { i =>
          Vectors.hex(rows.bytes, rows.keyOffset(i), rows.keyLength(i))
        }
        assert(found == keys.map(Vectors.hex(_)).distinct.sorted)
      }
    }
  }

  test("a prefix of very many rows is as fast as any other key") {
    val layer = new Layer(16)
    val rows = 100000
    val prefix = Array[Byte](0, 1, 1, 0, 0, 0, 7)
    (0 until rows).foreach { i =>
      val key = java.nio.ByteBuffer.allocate(15).put(prefix).putLong(i.toLong).array
      layer.put(hashOf(key, 0, key.length), key, 0, key.length, key, 7, 8)
    }
    assert(layer.rows == rows && layer.longestChain < 20)
    val content = Content.empty().over(List(layer))
    val hash = hashOf(prefix, 0, prefix.length)
    assert(all(content.prefixScan(hash, prefix, prefix.length)).distinct.size == rows)
    val gone = java.nio.ByteBuffer.allocate(15).put(prefix).putLong(5L).array
    layer.remove(hash, gone, 0, gone.length)
    layer.put(hash, prefix ++ gone.drop(7).reverse, 0, gone.length, gone, 0, 1)
    assert(all(content.prefixScan(hash, prefix, prefix.length)).distinct.size == rows)
  }

  test("range scans of many ordered rows equal the model through puts, removals and folding") {
    val random = new Random(seed)
    def ordered(n: Int): Array[Byte] =
      java.nio.ByteBuffer.allocate(10).put(Array[Byte](0, 3)).putLong(n.toLong).array
    def encoded(n: Int): Option[Array[Byte]] = Some(ordered(n).drop(2))
    var content = Content.empty()
    var model = TreeMap.empty[Int, String]
    for (round <- 1 to 12) {
      val layer = new Layer(64)
      val first = random.nextInt(8000)
      if (round % 5 == 0) {
        layer.clear(Tombstone(3, encoded(first), encoded(first + 500)))
        model = model.filterNot { case (n, _) => n >= first && n < first + 500 }
      }
      for (_ <- 1 to 3000) {
        val n = if (random.nextBoolean()) first + random.nextInt(2000) else random.nextInt(10000)
        val k = ordered(n)
        if (random.nextInt(3) == 0) {
          layer.remove(hashOf(k, 0, k.length), k, 0, k.length)
          model -= n
        } else {
          val value = random.nextBytes(8)
          layer.put(hashOf(k, 0, k.length), k, 0, k.length, value, 0, value.length)
          model = model.updated(n, Vectors.hex(value))
        }
      }
      content = content.over(List(layer))
      if (round % 3 == 0) content = Content.fold(content, hashOf)
      assert(content.base.rowsHere.contains(0L), "rows of ordered families are in no bucket")
      for (_ <- 1 to 20) {
        val from = random.nextInt(11000)
        val to = from + random.nextInt(1500)
        val found = all(content.rangeScan(Tombstone(3, encoded(from), encoded(to)), hashOf))
        val wanted = model.rangeFrom(from).rangeUntil(to).toSeq
        withClue(s"seed $seed round $round: ") {
          assert(found == wanted.map { case (n, value) => Vectors.hex(ordered(n)) -> value })
        }
      }
      val slice = new Slice
      for (n <- 0 until 10000 by 17) {
        val k = ordered(n)
        val found = content.get(hashOf(k, 0, k.length), k, 0, k.length, slice)
        assert(found == model.contains(n))
      }
    }
  }
}
