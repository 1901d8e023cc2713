package org.redisstate.core.backend

import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}
import java.security.MessageDigest
import java.util.HexFormat

import org.redisstate.core.errors.InternalException

/** One atomic step as a Lua script; the files are shared with the Python package. */
final class Script private (text: String) {
  private val textBytes = text.getBytes(UTF_8)
  private val hash = HexFormat.of
    .formatHex(MessageDigest.getInstance("SHA-1").digest(textBytes))
    .getBytes(US_ASCII)

  def byHash(keys: Seq[String], args: Seq[Array[Byte]]): Command =
    command("EVALSHA", hash, keys, args)

  /** Runs it on any server, which knows it from then on. */
  def byText(keys: Seq[String], args: Seq[Array[Byte]]): Command =
    command("EVAL", textBytes, keys, args)

  /** Returns whether a command runs this script, by hash or by text. */
  def isRunBy(command: Command): Boolean = command.name match {
    case "EVAL" => java.util.Arrays.equals(command.args.head, textBytes)
    case "EVALSHA" => java.util.Arrays.equals(command.args.head, hash)
    case _ => false
  }

  private def command(
      name: String,
      script: Array[Byte],
      keys: Seq[String],
      args: Seq[Array[Byte]]) =
    Command(
      name,
      (Seq(script, Command.bytes(keys.size.toString)) ++ keys.map(Command.bytes) ++ args).toArray)
}

object Script {
  private final val Include = "--#include "

  val Open: Script = load("open")
  val Acquire: Script = load("acquire")
  val Stage: Script = load("stage")
  val Publish: Script = load("publish")
  val Abort: Script = load("abort")
  val Bound: Script = load("bound")
  val Preview: Script = load("preview")
  val Snapshot: Script = load("snapshot")
  val HotRun: Script = load("hotrun")
  val Retain: Script = load("retain")
  val Renew: Script = load("renew")
  val Register: Script = load("register")
  val Heartbeat: Script = load("heartbeat")
  val Release: Script = load("release")
  val Alive: Script = load("alive")
  val Count: Script = load("count")
  val Describe: Script = load("describe")
  val Stay: Script = load("stay")
  val Unpin: Script = load("unpin")
  val Forget: Script = load("forget")
  val Detach: Script = load("detach")
  val Pin: Script = load("pin")
  val Announce: Script = load("announce")
  val Place: Script = load("place")
  val Condemn: Script = load("condemn")
  val Discard: Script = load("discard")

  /**
   * Scripts that touch undeclared keys, because only the manifest names those. On the node that
   * imports a half-moved slot, such a key looks absent until it arrives.
   */
  val Undeclared: Seq[Script] =
    Seq(Acquire, Bound, Place, Publish, Retain, Renew, HotRun, Snapshot, Stage)

  private def load(name: String): Script = {
    val text = read(name)
    val head = text.linesIterator.takeWhile(_.startsWith(Include))
    new Script(head.map(line => read(line.stripPrefix(Include).trim)).mkString + text)
  }

  private def read(name: String): String = {
    val in = getClass.getResourceAsStream(s"/org/redisstate/scripts/$name.lua")
    if (in == null)
      throw new InternalException(s"the jar holds no script $name: build it with `make build`")
    try new String(in.readAllBytes(), UTF_8)
    finally in.close()
  }
}
