package org.redisstate.core.store

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.{FormatException, InternalException, RedisStateException}
import org.redisstate.core.ids.Keys

/** Keys of a partition that another program overwrote: reported as FORMAT, never as INTERNAL. */
final class DamagedKeysSuite extends AnyFunSuite {
  import TestPartition._

  private val Versions = 3L
  private val Garbage = Seq("", "x", "-1", "a b c d e f")

  private val calls = Seq[(String, TestPartition => Unit)](
    "read" -> (_.store("a").open(Versions)),
    "read an older version" -> (_.store("a").open(1)),
    "commit elsewhere" -> (p => write(p.store("b"), Versions)),
    "go back" -> (p => write(p.store("b"), Versions - 1))
  ).map { case (name, call) => name -> ((p: TestPartition) => { call(p); () }) }

  private def write(store: PartitionVersions, version: Long): Unit = {
    val session = store.open(version).write()
    try {
      put(session, key(0, "k"), version.toString)
      session.commit()
      ()
    } finally session.abort()
  }

  /** A partition with a few versions; `body` gets a new one each time. */
  private def planted[A](server: RedisServerProcess)(body: TestPartition => A): A = {
    val partition = new TestPartition(server)
    try {
      val store = partition.store("a")
      (0L until Versions).foreach(write(store, _))
      body(partition)
    } finally partition.close()
  }

  /** Calls that end with anything but an error that a caller can act on. */
  private def failures(server: RedisServerProcess)(damage: TestPartition => Unit): Seq[String] =
    calls.flatMap { case (name, call) =>
      planted(server) { partition =>
        damage(partition)
        Try(call(partition)) match {
          case Failure(error: InternalException) => Some(s"$name: ${error.getMessage}")
          case Failure(_: RedisStateException) | Success(_) => None
          case Failure(error) => Some(s"$name: $error")
        }
      }
    }

  /** Ids differ from one partition to the next. */
  private def shape(name: String): String = name.replaceAll("[0-9a-f]{16,}", "*")

  private def withServer(body: RedisServerProcess => Unit): Unit = {
    val server = new RedisServerProcess()
    try body(server)
    finally server.close()
  }

  test("a key of another type is FORMAT")(withServer { server =>
    planted(server)(_.keys.map(shape)).foreach { kind =>
      val wrong = failures(server) { partition =>
        val base = Keys.meta(partition.id).dropRight(1)
        partition.keys.filter(shape(_) == kind).foreach { name =>
          partition.raw.del(base + name)
          partition.raw.set(base + name, "not ours")
        }
      }
      assert(wrong.isEmpty, kind)
    }
    planted(server) { partition =>
      partition.raw.del(Keys.meta(partition.id))
      partition.raw.set(Keys.meta(partition.id), "not ours")
      val error = intercept[FormatException](partition.store("a").open(Versions))
      Seq("of another type", "WRONGTYPE", "redis-state doctor").foreach { words =>
        assert(error.getMessage.contains(words))
      }
    }
  })

  test("a damaged field of a manifest is no INTERNAL error")(withServer { server =>
    planted(server)(p => p.raw.hkeys(Keys.meta(p.id)).asScala.map(shape).toSet).foreach { field =>
      (Garbage.map(Option(_)) :+ None).foreach { garbage =>
        val wrong = failures(server) { partition =>
          val meta = Keys.meta(partition.id)
          partition.raw.hkeys(meta).asScala.filter(shape(_) == field).foreach { name =>
            garbage.fold(partition.raw.hdel(meta, name))(partition.raw.hset(meta, name, _))
          }
        }
        assert(wrong.isEmpty, s"$field $garbage")
      }
    }
  })

  test("a script that meets a damaged entry is FORMAT")(withServer { server =>
    planted(server) { partition =>
      partition.raw.hset(Keys.meta(partition.id), "o", "many")
      val error = intercept[FormatException](write(partition.store("b"), Versions))
      assert(error.getMessage.contains("an entry that redis-state does not write"))
    }
  })
}
