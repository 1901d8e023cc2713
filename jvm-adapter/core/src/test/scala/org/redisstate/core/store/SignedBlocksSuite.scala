package org.redisstate.core.store

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{ConfigException, FormatException}
import org.redisstate.core.format.BlockSigner
import org.redisstate.core.local.Slice

/** Stores whose blocks carry a signature. */
class SignedBlocksSuite extends AnyFunSuite {
  import TestPartition._

  private val signer = Some(new BlockSigner(Array.fill(32)(7.toByte)))

  test("what is signed is read by who has the key, and by nobody else") {
    onServer { partition =>
      fill(partition)
      assert(valueOf(open(partition, signer)) == "2")
      val unaware = intercept[FormatException](valueOf(open(partition, None)))
      assert(unaware.getMessage.contains("it is signed: give the key in 'signingKeyFile'"))
      val other = Some(new BlockSigner(new Array[Byte](32)))
      val wrong = intercept[FormatException](valueOf(open(partition, other)))
      assert(wrong.getMessage.contains("not signed with this key"))
    }
  }

  test("a block that somebody changed or moved is refused") {
    onServer { partition =>
      fill(partition)
      val raw = partition.raw
      val (first, second) = {
        val blocks = for {
          key <- raw.keys("*:d:*").asScala.toSeq.sorted.map(_.getBytes(UTF_8))
          field <- raw.hkeys(key).asScala.toSeq if new String(field, UTF_8) != "h"
        } yield (key, field, raw.hget(key, field))
        (blocks.head, blocks.last)
      }
      assert(first._3.head == 0xb8.toByte)
      val (key, field, value) = first
      val flipped = value.clone()
      flipped(flipped.length - 1) = (flipped.last ^ 1).toByte
      Seq(flipped, value.drop(17), second._3).foreach { bad =>
        raw.hset(key, field, bad)
        val failure = intercept[FormatException](valueOf(open(partition, signer)))
        assert(failure.getMessage.contains("not signed with this key"))
      }
      raw.hset(key, field, value)
      assert(valueOf(open(partition, signer)) == "2")
    }
  }

  test("a key that cannot be used is told") {
    val file = Files.createTempFile("rs-key", "")
    Files.writeString(file, "x" * 31 + "\r\n")
    val short = intercept[ConfigException](BlockSigner.of(file.toString))
    assert(short.getMessage.contains("it has 31 bytes"))
    Files.delete(file)
    val absent = intercept[ConfigException](BlockSigner.of(file.toString))
    assert(absent.getMessage.contains("NoSuchFileException"))
  }

  private def onServer(body: TestPartition => Unit): Unit =
    Using.resource(new RedisServerProcess()) { server =>
      val partition = new TestPartition(server)
      try body(partition)
      finally partition.close()
    }

  private def open(partition: TestPartition, signer: Option[BlockSigner]): PartitionVersions =
    partition.store("a", signer = signer)

  private def fill(partition: TestPartition): Unit = {
    val store = open(partition, signer)
    (0 to 2).foreach { version =>
      val session = store.open(version.toLong).write()
      put(session, key(0, "x"), version.toString)
      session.commit()
    }
  }

  private def valueOf(store: PartitionVersions): String = {
    val value = new Slice
    val name = key(0, "x")
    assert(store.open(3).get(name, name.length, value))
    text(value)
  }
}
