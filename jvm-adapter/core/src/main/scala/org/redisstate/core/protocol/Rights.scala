package org.redisstate.core.protocol

import java.util.UUID

import org.redisstate.core.backend.{Command, RedisBackend}
import org.redisstate.core.ids.{Keys, PartitionId}

/**
 * Checks at the start of a query that the server can be reached and that its user has all rights
 * that a job needs.
 */
object Rights {

  /**
   * Checks the rights, and leaves no key: the server judges all commands of a transaction before it
   * runs the first one, and the last one removes the keys.
   *
   * @throws org.redisstate.core.errors.RedisStateException with the fault and advice
   */
  def check(backend: RedisBackend, prefix: String): Unit = {
    backend.call(Checking, Seq(Command("TIME")))
    val gen = UUID.randomUUID().toString.replace("-", "")
    backend.transaction(
      Checking,
      commands(
        Keys.query(prefix, gen),
        Keys.instance(PartitionId(prefix, gen, 0, 0, "default"))))
    ()
  }

  /** Commands of a job, as `redis-state acl` lists them; Python sends the same. */
  private[protocol] def commands(hash: String, text: String): Seq[Command] = Seq(
    Command("HSET", hash, "a", "1"),
    Command("PEXPIRE", hash, KeepMs),
    Command("SET", text, "1", "PX", KeepMs),
    Command("HSETNX", hash, "b", "1"),
    Command("HGET", hash, "a"),
    Command("HMGET", hash, "a"),
    Command("HGETALL", hash),
    Command("HEXISTS", hash, "a"),
    Command("HLEN", hash),
    Command("HRANDFIELD", hash, "1"),
    Command("PTTL", hash),
    Command("PERSIST", hash),
    Command("GET", text),
    Command("MGET", text),
    Command("EXISTS", text),
    Command("EVAL", "return 1", "1", hash),
    Command("HDEL", hash, "a"),
    Command("RENAME", hash, hash),
    Command("UNLINK", hash, text)
  )

  private val Checking = "check the server"
  private val KeepMs = "60000"
}
