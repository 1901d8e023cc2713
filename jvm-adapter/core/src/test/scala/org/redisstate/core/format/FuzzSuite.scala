package org.redisstate.core.format

import java.lang.management.ManagementFactory
import java.nio.charset.StandardCharsets.ISO_8859_1

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.FormatException

/**
 * Hostile bytes for every decoder, bent from good ones with a check that fits. `REDIS_STATE_FUZZ`
 * changes their number, `REDIS_STATE_SEED` what they are.
 */
class FuzzSuite extends AnyFunSuite {
  import FuzzSuite._
  import Vectors._

  private val inputs = sys.env.get("REDIS_STATE_FUZZ").fold(100000)(_.toInt)
  private val seed = sys.env.get("REDIS_STATE_SEED").fold(1L)(_.toLong)
  private val threads =
    ManagementFactory.getThreadMXBean.asInstanceOf[com.sun.management.ThreadMXBean]

  private def payloads(name: String): Seq[Array[Byte]] =
    objects(read(name).getAsJsonObject.get("good")).map(bytes(_, "payload"))

  private def sealedIn(field: String, payload: Array[Byte]): Array[Byte] =
    Block.decode(
      Ident,
      field,
      Block.encode(Ident, field, payload, payload.length, compress = false))

  private def targets: IndexedSeq[Target] = {
    val file = read("segments").getAsJsonObject
    val texts = objects(file.get("good")).map(one =>
      s"${text(one, "field")}\n${text(one, "entry")}".getBytes(ISO_8859_1))
    val blocks = read("blocks").getAsJsonObject
    val large = Array.tabulate(4000)(i => (i / 50).toByte)
    IndexedSeq(
      Target("rows", payloads("rows"), raw => shown(RowBlock.parse(sealedIn("0", raw)))),
      Target("header", payloads("headers"), raw => Header.decode(sealedIn("h", raw))),
      Target(
        "block",
        objects(blocks.get("good")).map(bytes(_, "block")),
        raw => Block.decode(Ident, "0", raw)),
      Target("frame", Seq(Compression.compress(large, large.length, 0)), bentFrame),
      Target(
        "entry",
        texts,
        raw => {
          val lines = new String(raw, ISO_8859_1).split("\n", 2)
          Segment.parse(lines.head, lines.last)
        }),
      Target(
        "list",
        Seq(MultiValue.encode(Seq("a".getBytes, ("bc" * 40).getBytes))),
        raw => MultiValue.elements(raw, 0, raw.length).map(_.length).sum)
    )
  }

  /** A compressed payload that is bent, in a block whose check and length fit what the frame may hold. */
  private def bentFrame(frame: Array[Byte]): Any = {
    val raw = Block.encode(Ident, "0", frame, frame.length, compress = false)
    raw(1) = 1
    Block.putInt(raw, 2, if (frame.length % 2 == 0) 4000 else Block.RawLengthMax)
    Block.decode(Ident, "0", Block.seal(Ident, "0", raw))
  }

  test(s"$inputs hostile inputs are read or refused, and claim no memory") {
    val random = new Random(seed)
    val bend = new Bender(random)
    val all = targets
    val pool = all.flatMap(_.good)
    var refused = 0
    (1 to inputs).foreach { n =>
      val target = all(random.nextInt(all.size))
      val raw =
        bend(target.good(random.nextInt(target.good.size)), pool(random.nextInt(pool.size)))
      val before = threads.getCurrentThreadAllocatedBytes
      try target.decode(raw)
      catch {
        case _: FormatException => refused += 1
        case e: Throwable => fail(s"seed $seed, input $n, ${target.name}, ${hex(raw)}: $e", e)
      }
      val claimed = threads.getCurrentThreadAllocatedBytes - before
      assert(
        claimed <= AllowedFactor * raw.length + AllowedBytes,
        s"seed $seed, input $n, ${target.name}, ${hex(raw)}")
    }
    info(s"seed $seed: $refused of $inputs refused")
    assert(refused > 0 && refused < inputs)
  }
}

object FuzzSuite {
  private val Ident = "d:1:u"
  private val AllowedFactor = 400L
  private val AllowedBytes = 1L << 20

  private final case class Target(
      name: String,
      good: Seq[Array[Byte]],
      decode: Array[Byte] => Any)
}
