package org.redisstate.core.protocol.names

import java.nio.charset.StandardCharsets.UTF_8

import org.redisstate.core.backend.{Command, RedisBackend, Script}
import org.redisstate.core.ids.Keys
import org.redisstate.core.protocol.RunRegistry

/**
 * Claims on the gen of a checkpoint without a marker: all writers agree on the first claim
 * (docs/format.md, section 9).
 */
class GenClaims(backend: RedisBackend, prefix: String) {
  import GenClaims._

  /**
   * Claims a gen and returns the gen that was claimed first; None if that claim has just been
   * dropped.
   */
  def take(pathHash: String, gen: String): Option[String] = {
    val key = Keys.genClaim(prefix, pathHash)
    val commands =
      Seq(Command("SET", key, gen, "NX", "PX", KeepMs.toString), Command("GET", key))
    backend.call("claim the gen of a checkpoint", commands).last match {
      case bytes: Array[Byte] => Some(new String(bytes, UTF_8))
      case _ => None
    }
  }

  /** Returns the present claim. */
  def look(pathHash: String): Option[String] = {
    val get = Command("GET", Keys.genClaim(prefix, pathHash))
    backend.call("look for the claim of a gen", Seq(get)).head match {
      case bytes: Array[Byte] => Some(new String(bytes, UTF_8))
      case _ => None
    }
  }

  /** Removes a claim, unless another gen was claimed in the meantime. */
  def drop(pathHash: String, gen: String): Unit = {
    val args = Seq(gen, "0").map(Command.bytes)
    val key = Keys.genClaim(prefix, pathHash)
    backend.script("drop the claim of a gen", Script.Release, Seq(key), args)
    ()
  }

  /** Returns whether a run ever wrote under a gen, which requires its marker file. */
  def isUsed(gen: String): Boolean = {
    val ask = Command("HEXISTS", Keys.query(prefix, gen), RunRegistry.MarkerField)
    backend.call("look for a gen", Seq(ask)).head == java.lang.Long.valueOf(1)
  }
}

object GenClaims {

  /** Longer than anybody sleeps between his claim and the file. */
  private val KeepMs = 24L * 3600 * 1000
}
